"""What a sweep leaves in its folder: ``sweep.json`` with every trial, and ``best.yaml`` to train the best anew."""

from __future__ import annotations

import json
import math
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.checkpoint.directory import list_checkpoints
from trainwright.config.secrets import redacted_values
from trainwright.config.yaml12 import write_yaml
from trainwright.core.files import replace_text
from trainwright.experiment.stored import resolved
from trainwright.search.inheriting import FILE as INHERITED
from trainwright.search.plan import Plan, trial_experiment
from trainwright.search.study import CHOSEN, COUNTED, MEASURED, PARENT, REASON, best_numbers, import_optuna, kind_of

SWEEP, BEST = "sweep.json", "best.yaml"
_FORM = 1
#: Fewer trials say nothing about which setting matters.
_FEWEST_FOR_IMPORTANCE = 8


@dataclass(frozen=True)
class TrialResult:
    """One trial of a sweep."""

    number: int
    #: done, pruned, diverged, failed, over a limit, impossible or running.
    state: str
    #: Values of the metrics by name; empty unless it is done.
    values: dict[str, float]
    #: What was chosen, by setting.
    settings: dict[str, Any]
    folder: Path
    reason: str | None = None
    #: (evaluation, value) of those in between.
    course: tuple[tuple[int, float], ...] = ()
    measured: dict[str, float] | None = None
    #: The trial whose weights it began with.
    parent: int | None = None


@dataclass(frozen=True)
class SweepResult:
    """How a sweep ended.

    ``best`` is the best trial. With several metrics ``front`` has all that no other beats in everything, and ``best``
    is the one of them with the best first metric.
    """

    folder: Path
    trials: list[TrialResult]
    best: TrialResult | None
    front: list[TrialResult]
    importance: dict[str, float]
    #: The best as an experiment's file.
    best_experiment: Path | None
    report: Path | None = None


def results_of(plan: Plan, study: Any) -> SweepResult:
    """Everything that the study knows."""
    trials, front = _trials_and_front(plan, study)
    goal = plan.goals[0]
    sign = 1 if goal.direction == "minimize" else -1
    best = min(front, key=lambda one: (sign * one.values[goal.name], one.number)) if front else None
    return SweepResult(
        plan.folder, trials, best, front, _importance(study), None if best is None else plan.folder / BEST
    )


def _trials_and_front(plan: Plan, study: Any) -> tuple[list[TrialResult], list[TrialResult]]:
    """All trials and the best of them, of one moment: other workers may end a trial between two looks at the study."""
    while True:
        read = study.get_trials(deepcopy=False)
        # Found after the trials were read, so that what is done there and not among these is beaten for certain.
        numbers = best_numbers(study)
        if all(number < len(read) and read[number].state.is_finished() for number in numbers):
            trials = [_result(plan, trial) for trial in read]
            return trials, [trials[number] for number in numbers]


def _result(plan: Plan, trial: Any) -> TrialResult:
    kind = kind_of(trial)
    values = {goal.name: value for goal, value in zip(plan.goals, trial.values or (), strict=False)}
    return TrialResult(
        number=trial.number,
        state=kind,
        values=values if kind == "done" else {},
        settings=dict(trial.user_attrs.get(CHOSEN) or {}),
        folder=plan.trial_folder(trial.number),
        reason=trial.user_attrs.get(REASON),
        course=tuple(sorted(trial.intermediate_values.items())),
        measured=trial.user_attrs.get(MEASURED),
        parent=trial.user_attrs.get(PARENT),
    )


def _importance(study: Any) -> dict[str, float]:
    """How much of the first metric's spread each setting explains; empty where too little is known."""
    optuna = import_optuna()
    done = [one for one in study.get_trials(deepcopy=False) if one.state == optuna.trial.TrialState.COMPLETE]
    if len(done) < _FEWEST_FOR_IMPORTANCE or len({tuple(one.values) for one in done}) < 2:
        return {}
    target = (lambda trial: trial.values[0]) if len(study.directions) > 1 else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = optuna.importance.get_param_importances(
                study, evaluator=optuna.importance.PedAnovaImportanceEvaluator(), target=target
            )
    except (ValueError, RuntimeError, ArithmeticError):
        # Settings that were searched under conditions are not in every trial, and it wants all of them.
        return {}
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def write_results(plan: Plan, study: Any, *, is_over: bool) -> SweepResult:
    """Write ``sweep.json`` and ``best.yaml``, and remove the weights that nobody asked to keep."""
    found = results_of(plan, study)
    document = {
        "form": _FORM,
        "name": plan.name,
        "state": "finished" if is_over else "running",
        "goals": [{"metric": goal.name, "direction": goal.direction} for goal in plan.goals],
        "method": plan.method,
        "prune": plan.pruner,
        "seed": plan.seed,
        "asked": plan.trials,
        "best": [one.number for one in found.front],
        "importance": found.importance,
        "trials": [_as_json(one) for one in found.trials],
    }
    replace_text(plan.folder / SWEEP, json.dumps(redacted_values(document), indent=2, default=str) + "\n", forced=True)
    if found.best is not None:
        replace_text(plan.folder / BEST, _best_experiment(plan, found.best), forced=True)
    if not plan.keeps_all:
        kept = {one.number for one in found.front}
        for one in found.trials:
            if one.state != "running" and one.number not in kept:
                _remove_weights(one.folder)
    return found


def _as_json(one: TrialResult) -> dict[str, Any]:
    return {
        "number": one.number,
        "state": one.state,
        "values": one.values,
        "settings": one.settings,
        "reason": one.reason,
        "course": [list(point) for point in one.course],
        "measured": one.measured,
        "parent": one.parent,
        "folder": one.folder.name,
    }


def _best_experiment(plan: Plan, best: TrialResult) -> str:
    """An experiment's file with the best values in their places."""
    plain = resolved(trial_experiment(plan.base, best.settings))
    plain["name"] = f"{plan.name}-best"
    for section in ("training", "checkpoint"):
        (plain.get(section) or {}).pop("output_dir", None)
    values = ", ".join(f"{name} {value:.6g}" for name, value in best.values.items())
    began = "" if best.parent is None else f" It began with the weights of trial {best.parent}."
    return f"# Trial {best.number} of {plan.folder.name}: {values}.{began}\n" + write_yaml(redacted_values(plain))


def _remove_weights(folder: Path) -> None:
    """What takes room of a trial that is over and not the best; its numbers stay."""
    if not folder.is_dir():
        return
    for checkpoint in list_checkpoints(folder):
        shutil.rmtree(checkpoint, ignore_errors=True)
    for path in (*folder.glob("model*.safetensors"), folder / INHERITED):
        path.unlink(missing_ok=True)


def counted(result: SweepResult) -> int:
    """Trials that were trained."""
    return sum(one.state in COUNTED for one in result.trials)
