"""A whole sweep: workers that take trial after trial until enough are done, and what they leave."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trainwright.config.backends import rank_from_environment
from trainwright.config.errors import ConfigError
from trainwright.config.loading import Loaded, experiment_from
from trainwright.config.secrets import redacted_values
from trainwright.config.yaml12 import Document, read_yaml_file, write_yaml
from trainwright.core.files import replace_text
from trainwright.report.sweep_page import write_sweep_report
from trainwright.search.inheriting import hand_down
from trainwright.search.plan import Plan, read_plan, sweep_document
from trainwright.search.results import SweepResult, TrialResult, counted, results_of, write_results
from trainwright.search.several import refuse_secrets, train_in_processes
from trainwright.search.study import (
    MEASURED,
    PARENT,
    Work,
    alone,
    best_numbers,
    next_work,
    open_study,
    settle,
)
from trainwright.search.trial import Job, run_trial, stored_measures
from trainwright.search.worker import description_of
from trainwright.search.workers import Workers

Say = Callable[[str], None]
THREADS = "threads"
_LOOK_SECONDS = 0.3


def sweep(
    experiment: str | Path | Mapping[str, Any] | Loaded,
    *,
    overrides: Sequence[str] = (),
    trust: bool = False,
    workers: int = 1,
    processes: int = 1,
    imports: Sequence[str | Path] = (),
    fresh: bool = False,
    say: Say = print,
) -> SweepResult:
    """Train an experiment with many settings, and find the best; the same call again goes on where it was stopped.

    Args:
        experiment: The path of an experiment's file with a ``search:`` section, or the same as a dict.
        overrides: What a command line would add, such as ``["search.trials=50"]``.
        trust: Let code run that the experiment names (``my_file.py:Class``).
        workers: Trials at the same time, each in a process of its own.
        processes: Processes of each trial, as ``trainwright launch --nproc`` starts them.
        imports: Files that register what the experiment names, for the processes that are started.
        fresh: Begin another study in a new folder.
        say: Is given each line about the course.

    >>> import tempfile
    >>> found = sweep({
    ...     "model": {"name": "mlp", "options": {"width": 8}},
    ...     "data": {"train": "digits", "limit_train": 64},
    ...     "training": {"max_steps": 4, "output_dir": f"{tempfile.mkdtemp()}/digits"},
    ...     "search": {"trials": 2, "space": {"training.learning_rate": {"log_range": [1e-4, 1e-1]}}},
    ... }, say=lambda line: None)
    >>> len(found.trials), found.best is not None
    (2, True)
    """
    loaded = _loaded(experiment, overrides, trust)
    _refuse_counts(workers, processes)
    plan = read_plan(loaded)
    if fresh:
        plan = dataclasses.replace(plan, folder=_new_folder(plan))
    plan.folder.mkdir(parents=True, exist_ok=True)
    study = open_study(plan)
    _keep_description(plan, loaded)
    goals = ", ".join(f"{goal.direction} {goal.name}" for goal in plan.goals)
    say(f"{plan.folder}: {goals}, {plan.trials} trials, {plan.method}.")
    threads = _threads(study, max(1, torch.get_num_threads() // workers))
    files = [str(Path(one).absolute()) for one in imports]
    description = description_of(loaded, plan.folder, threads, processes, files)
    if processes > 1:
        refuse_secrets(description)
    if workers > 1:
        _work_together(plan, study, description, workers, say)
    else:
        work_on(plan, study, threads=threads, say=say, description=description if processes > 1 else None)
    with alone(plan.folder):
        found = write_results(plan, study, is_over=True)
    return dataclasses.replace(found, report=write_sweep_report(plan.folder).html)


def _refuse_counts(workers: int, processes: int) -> None:
    if rank_from_environment().world_size > 1:
        raise ConfigError(
            "A sweep chooses for all processes: start it by itself; --workers trains several trials at once, and "
            "--nproc each in several processes."
        )
    if workers < 1 or processes < 1:
        raise ConfigError(f"{workers} workers with {processes} processes: give 1 or more of each.")


def _loaded(experiment: Any, overrides: Sequence[str], trust: bool) -> Loaded:
    if isinstance(experiment, Loaded):
        return experiment
    if isinstance(experiment, Mapping):
        return experiment_from(Document(dict(experiment), "experiment"), overrides, trust=trust)
    path = Path(experiment)
    return experiment_from(read_yaml_file(path), overrides, trust=trust, folder=path.parent)


def _new_folder(plan: Plan) -> Path:
    number, folder = 2, plan.folder
    while folder.exists():
        folder, number = plan.folder.with_name(f"{plan.folder.name}-{number}"), number + 1
    return folder


def _keep_description(plan: Plan, loaded: Loaded) -> None:
    """The whole sweep as a file, for people and for workers of other machines."""
    text = write_yaml(redacted_values(sweep_document(loaded)))
    text = "# The experiment of this sweep; paths are absolute.\n" + text
    replace_text(plan.folder / "experiment.yaml", text, by_several=True)


def _threads(study: Any, number: int) -> int:
    """As many as when the study began: the last bits of a training may depend on it."""
    known = study.user_attrs.get(THREADS)
    if known is None:
        study.set_user_attr(THREADS, number)
    return int(known or number)


def work_on(plan: Plan, study: Any, *, threads: int, say: Say, description: dict[str, Any] | None = None) -> None:
    """Take trial after trial until none is left to begin; each in several processes where there is a description."""
    began = time.monotonic()
    while True:
        in_time = plan.timeout is None or time.monotonic() - began < plan.timeout
        with alone(plan.folder):
            work = next_work(plan, study, may_begin=in_time)
            if work is None:
                return
            _hand_down(plan, study, work)
        folder = plan.trial_folder(work.number)
        try:
            if description is None:
                ending = run_trial(Job(plan, work.number, work.chosen, threads, work.trial))
            else:
                ending = train_in_processes(description, folder, work.number, work.chosen)
        except BaseException:
            # It goes on from its checkpoint when the same command is run again.
            work.claim.release()
            raise
        with alone(plan.folder):
            work.trial.set_user_attr(MEASURED, stored_measures(folder))
            settle(study, work, ending)
            found = write_results(plan, study, is_over=False)
        say(line_of(plan, found, found.trials[work.number]))


def _hand_down(plan: Plan, study: Any, work: Work) -> None:
    """The weights of the best so far, for a trial that begins."""
    if not plan.inherit or PARENT in work.trial.user_attrs:
        return
    numbers = best_numbers(study)
    if numbers and hand_down(plan.trial_folder(numbers[0]), plan.trial_folder(work.number)):
        work.trial.set_user_attr(PARENT, numbers[0])


def line_of(plan: Plan, found: SweepResult, one: TrialResult) -> str:
    """A trial in one line."""
    settings = "  ".join(f"{name.rpartition('.')[2]}={_short(value)}" for name, value in one.settings.items())
    values = ", ".join(f"{name} {value:.6g}" for name, value in one.values.items())
    what = values if one.state == "done" else one.state + (f" ({one.reason})" if one.reason else "")
    best = "" if found.best is None else f"; best {_best(plan, found)} (trial {found.best.number})"
    return f"[{counted(found)}/{plan.trials}] trial {one.number}: {what}  {settings}{best}"


def _best(plan: Plan, found: SweepResult) -> str:
    assert found.best is not None
    return f"{found.best.values[plan.goals[0].name]:.6g}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# ---- several workers


def _work_together(plan: Plan, study: Any, description: dict[str, Any], count: int, say: Say) -> None:
    """A process for each worker; a signal is handed on, and each saves what it is at."""
    with Workers(description, plan.folder, count) as workers:
        told = {one.number for one in results_of(plan, study).trials if one.state != "running"}
        while True:
            running = workers.are_running()
            found = results_of(plan, study)
            for one in found.trials:
                if one.state != "running" and one.number not in told:
                    told.add(one.number)
                    say(line_of(plan, found, one))
            if not running:
                break
            time.sleep(_LOOK_SECONDS)
        workers.check()
