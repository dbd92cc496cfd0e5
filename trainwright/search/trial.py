"""One trial: an ordinary training in a folder of its own, which the study may end early."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from trainwright.callbacks.progress import PrinterCallback, ProgressCallback
from trainwright.checkpoint.directory import list_checkpoints
from trainwright.config.backends import rank_from_environment
from trainwright.config.errors import ConfigError
from trainwright.core.errors import GivenUp, MissingMetricError, NonFiniteError
from trainwright.core.files import replace_text
from trainwright.core.finished import Finished, mark_finished
from trainwright.core.json_files import read_json
from trainwright.core.log_history import is_evaluation
from trainwright.experiment.building import Built
from trainwright.experiment.running import is_refusal, train
from trainwright.search.inheriting import FILE as INHERITED
from trainwright.search.inheriting import inherit
from trainwright.search.measures import measure
from trainwright.search.plan import Plan, UnknownMetricError, trial_experiment, unknown_metric
from trainwright.search.study import Ending
from trainwright.trainer.search import let_search_watch

RESULT = "trial.json"
_GIVEN_UP = "given up: others were better at this point"


class OverLimit(Exception):
    """The model is larger or slower than it may be: nothing is trained."""


@dataclass
class Job:
    """What a trial has to know, in whichever process it is trained."""

    plan: Plan
    number: int
    chosen: Mapping[str, Any]
    #: Threads of each operation: bits may depend on them.
    threads: int
    #: The study's trial in the process that speaks to it; None in others.
    trial: Any = None

    @property
    def folder(self) -> Path:
        return self.plan.trial_folder(self.number)


class Watched:
    """A training's link to its study: it hears of each evaluation, and may end the training."""

    def __init__(self, job: Job, built: Built) -> None:
        self.trial = SimpleNamespace(number=job.number, params=dict(job.chosen))
        self._job, self._built = job, built

    def report(self, metrics: dict[str, float], step: int) -> None:
        """Tell the study of an evaluation, counted from 1; several goals are not compared before the end."""
        goal, *others = self._job.plan.goals
        if others or goal.is_measured:
            return
        hopeless = False
        if self._job.trial is not None:
            evaluation = max(1, sum(is_evaluation(entry) for entry in self._built.trainer.state.log_history))
            known = self._job.trial.study.get_trials(deepcopy=False)[self._job.number].intermediate_values
            if evaluation not in known:
                self._job.trial.report(goal.value(metrics, {}), evaluation)
            state = self._built.trainer.state
            hopeless = state.global_step < state.max_steps and self._job.trial.should_prune()
        if self._built.trainer.engine.backend.gather(hopeless)[0]:
            raise GivenUp


def run_trial(job: Job) -> Ending:
    """Train, or go on where an earlier worker stopped; a trial that is over is not trained again."""
    if (ended := stored_ending(job.folder)) is not None:
        return ended
    built: list[Built] = []
    with _threads(job.threads):
        try:
            ending = _trained(job, built)
        except GivenUp:
            ending = Ending("pruned", reason=_GIVEN_UP)
            state = built[0].trainer.state
            if rank_from_environment().rank == 0:
                mark_finished(job.folder, Finished(state.global_step, state.max_steps, _GIVEN_UP))
        except OverLimit as over:
            ending = Ending("over a limit", reason=str(over))
        except NonFiniteError as error:
            ending = Ending("diverged", reason=str(error))
        except (
            ConfigError,
            ValueError,
            TypeError,
            RuntimeError,
            ArithmeticError,
            AssertionError,
            LookupError,
        ) as error:
            ending = _failed(error, built)
    built.clear()
    gc.collect()
    if rank_from_environment().rank == 0:
        _store(job.folder, ending=ending._asdict())
    return ending


def _failed(error: Exception, built: list[Built]) -> Ending:
    """Values that make no model are not the same as a training that broke."""
    line = (str(error).strip().splitlines() or [""])[0][:500]
    if isinstance(error, UnknownMetricError):
        # So it will be in all trials.
        raise error
    refused = isinstance(error, ValueError) and is_refusal(error)
    # Without a model, or refused before the first step.
    is_impossible = not built or (refused and built[0].trainer.state.global_step == 0)
    return Ending("impossible" if is_impossible else "failed", reason=f"{type(error).__name__}: {line}")


def _trained(job: Job, built: list[Built]) -> Ending:
    plan, measured = job.plan, _stored(job.folder).get("measured") or {}

    def ready(made: Built) -> None:
        built.append(made)
        if not measured:
            found = measure(made, {*plan.limits, *(goal.name for goal in plan.goals)})
            # Times differ from process to process, and all have to decide alike.
            backend = made.trainer.engine.backend
            backend.start(made.args)
            measured.update(backend.gather(found)[0])
            if rank_from_environment().rank == 0:
                _store(job.folder, measured=measured)
        _refuse_beyond(plan.limits, measured)
        if (job.folder / INHERITED).is_file() and not list_checkpoints(job.folder):
            inherit(made.prepared.model, job.folder / INHERITED)
        for shown in (ProgressCallback, PrinterCallback):
            made.trainer.remove_callback(shown)
        let_search_watch(made.trainer, Watched(job, made))

    loaded = _quiet(trial_experiment(plan.base, job.chosen, job.folder), plan)
    try:
        trained = train(loaded, say=lambda text: None, ready=ready)
    except ConfigError as error:
        if not isinstance(missing := error.__cause__, MissingMetricError):
            raise
        # Its message is of an argument, and here it is the search that wants it.
        raise unknown_metric(missing.wanted.removeprefix("eval_"), missing.available) from None
    values = [goal.value(trained.metrics, measured) for goal in plan.goals]
    if any(math.isnan(value) for value in values):
        return Ending("diverged", reason="its metric is not a number")
    return Ending("done", values)


def _quiet(loaded: Any, plan: Plan) -> Any:
    """A trial keeps the model that counts, one checkpoint to go on from, and writes no report of its own."""
    said = {**loaded.experiment.checkpoint, **loaded.experiment.training}
    usual: dict[str, Any] = {"write_report": False, "disable_tqdm": True, "save_total_limit": 1}
    goal = plan.goals[0]
    if not goal.is_measured and "metric_for_best_model" not in said:
        usual |= {"metric_for_best_model": goal.name, "greater_is_better": goal.direction == "maximize"}
    training = {**{name: value for name, value in usual.items() if name not in said}, **loaded.experiment.training}
    return dataclasses.replace(loaded, experiment=dataclasses.replace(loaded.experiment, training=training))


def _refuse_beyond(limits: Mapping[str, float], measured: Mapping[str, float]) -> None:
    for name, most in limits.items():
        if measured[name] > most:
            raise OverLimit(f"{name} is {measured[name]:,.6g}, more than {most:,.6g}")


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def stored_ending(folder: Path) -> Ending | None:
    """How the trial in ``folder`` ended, if it did."""
    ending = _stored(folder).get("ending")
    return None if ending is None else Ending(**ending)


def stored_measures(folder: Path) -> dict[str, float]:
    return dict(_stored(folder).get("measured") or {})


def _stored(folder: Path) -> dict[str, Any]:
    try:
        found = read_json(folder / RESULT, 2**20)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _store(folder: Path, **facts: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / RESULT, json.dumps({**_stored(folder), **facts}, indent=2) + "\n", forced=True)
