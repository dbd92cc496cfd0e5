"""Which settings of a resumed run are not those of its checkpoint, and what that means."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from trainwright.checkpoint.manifest import holds
from trainwright.config.effects import GLOBAL_BATCH, KEPT_BY_TRANSFORMERS, OF_THIS_START, Effect, effect_of
from trainwright.config.fields import ScheduleFields
from trainwright.config.secrets import holds_mask, masked_command, redacted_values
from trainwright.config.stored_arguments import FILE as CONFIG
from trainwright.config.stored_arguments import stored_arguments
from trainwright.core.config_history import FILE as HISTORY
from trainwright.core.config_history import Change, read_history, with_changes
from trainwright.engines.torch.made import forget_metric, without_rates
from trainwright.training.course import CourseSoFar
from trainwright.training.hooks import is_users_own
from trainwright.training.plan import total_train_batch_size
from trainwright.training.run import TrainingRun
from trainwright.training.save_model import run_folder
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")

#: What decides which evaluation is the best, and what is evaluated on.
_JUDGED_BY = ("metric_for_best_model", "greater_is_better", "model.metrics")
_JUDGED_ON = ("data.eval", "data.limit_eval")
#: In the history, of a change that nothing follows.
IDLE = "no effect"
#: Objects show where they are in memory.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def changed_arguments(before: dict[str, Any], setup: Setup) -> list[Change]:
    """Arguments that are not those of a checkpoint."""
    return differing_arguments(before, setup.given_args.to_dict())


def differing_arguments(before: dict[str, Any], now: dict[str, Any]) -> list[Change]:
    """Arguments whose value is another; those that one of the two does not have are not compared."""
    # As they come out of a file: a tuple is a list there.
    now, before = (json.loads(_ADDRESS.sub("", json.dumps(one, default=str))) for one in (redacted_values(now), before))
    return [
        Change(name, before[name], value, effect_of(name).value)
        for name, value in now.items()
        if name in before and name not in OF_THIS_START and before[name] != value
        if not holds_mask(value) and not holds_mask(before[name])
    ]


def arguments_in(checkpoint: Path) -> dict[str, Any] | None:
    """The arguments that a checkpoint was written with, where its manifest knows of them."""
    return stored_arguments(checkpoint) if holds(checkpoint, CONFIG) else None


def refuse_another_experiment(setup: Setup, checkpoint: Path) -> None:
    """Before anything is written: steps so far belong to another experiment."""
    config = arguments_in(checkpoint)
    changes = changed_arguments(config, setup) if config is not None else []
    found = [change.both_values for change in changes if change.effect == Effect.EXPERIMENT]
    if found:
        raise ValueError(
            f"{checkpoint} belongs to another experiment: {'; '.join(found)}. Set {'it' if len(found) == 1 else 'them'}"
            " back to go on, or start a new run in another output_dir."
        )


def _settings_that_differ(before: dict[str, Any], now: dict[str, Any]) -> list[Change]:
    """Of an experiment's file, where what is left out counts too."""
    both = ((name, before.get(name), now.get(name)) for name in {**before, **now})
    changes = [Change(name, old, new, effect_of(name).value) for name, old, new in both if old != new]
    # Another experiment was refused before: what is left of that is the same data under another name.
    return [one._replace(effect=Effect.FREE.value) if one.effect == Effect.EXPERIMENT else one for one in changes]


def note_changes(run: TrainingRun, checkpoint: Path, rest: dict[str, Any]) -> None:
    """Find what is changed from here on, and make it part of the run's history."""
    setup = run.setup
    changes = changed_arguments(run.config_then, setup) if run.config_then is not None else []
    changes = _with_global_batch(changes, run, rest["processes"])
    changes = _with_idle_ones(changes, setup)
    changes += _of_callbacks(setup)
    changes += _of_given_tools(setup, run, run.so_far)
    run.changes = changes
    step = setup.state.global_step
    by, when = run.owner.run.id, round(time.time(), 3)
    new = [{**change.at(step, when, _command()), "run": by} for change in changes]
    written = read_history(run_folder(setup)) if setup.args.should_save else []
    before = read_history(checkpoint) if holds(checkpoint, HISTORY) else []
    run.history = with_changes(before, written, new)
    _forget_another_metric(setup, changes)


def _command() -> list[str]:
    """The command that somebody typed: this process's, or that of the launcher which has started it."""
    launched = os.environ.get("TRAINWRIGHT_LAUNCHED_BY")
    return shlex.split(launched) if launched else masked_command(sys.argv)


def say_changes(run: TrainingRun) -> None:
    """One line for what changes the course, one for the rest."""
    changes, step = run.changes, run.setup.state.global_step
    course = [change for change in changes if change.effect == Effect.COURSE]
    idle = [change.what for change in changes if change.effect == IDLE]
    if course:
        kept = [change.what for change in course if change.what in KEPT_BY_TRANSFORMERS]
        note = f" (transformers would keep the old {', '.join(kept)})" if kept else ""
        logger.warning("From step %d on with %s%s.", step, _listed(course), note)
    if idle:
        logger.warning(
            "%s changed without effect: optimizer or schedule are the script's own, which follow no arguments.",
            ", ".join(idle),
        )
    free = [change for change in changes if change.effect == Effect.FREE]
    if free:
        logger.info("Goes on with %s.", _listed(free))


def _listed(changes: list[Change]) -> str:
    return ", ".join(change.words for change in changes)


def _with_global_batch(changes: list[Change], run: TrainingRun, processes: int) -> list[Change]:
    """Batch size, accumulation and processes are free where a step has as many samples as before."""
    before = run.config_then or {}
    if not all(isinstance(before.get(name), int) for name in GLOBAL_BATCH):
        return changes
    together = before.get("tensor_parallel_size")
    together = together if isinstance(together, int) and together > 0 else 1
    devices = before.get("engine_devices")
    then = before[GLOBAL_BATCH[0]] * before[GLOBAL_BATCH[1]] * max(processes // together, 1)
    then *= devices if isinstance(devices, int) else 1
    effect = Effect.FREE if then == total_train_batch_size(run.setup.args) else Effect.COURSE
    now = run.setup.backend.world_size
    found = [
        one._replace(effect=effect.value) if one.what in (*GLOBAL_BATCH, "engine_devices") else one for one in changes
    ]
    return found if processes == now else [*found, Change("processes", processes, now, effect.value)]


def _with_idle_ones(changes: list[Change], setup: Setup) -> list[Change]:
    """Arguments that nothing follows: the script has made its optimizer or schedule itself."""
    idle: set[str] = set()
    if not _follows_arguments(setup):
        idle |= KEPT_BY_TRANSFORMERS
    if not setup.own_scheduler and not getattr(setup.module, "follows_arguments", False):
        idle |= ScheduleFields.__dataclass_fields__.keys()
    return [one._replace(effect=IDLE) if one.what in idle else one for one in changes]


def _of_callbacks(setup: Setup) -> list[Change]:
    """What callbacks were made with (the patience of early stopping), which a resume does not bring back."""
    if setup.args.restore_callback_states_from_checkpoint:
        return []
    found: list[Change] = []
    # An experiment's file says what its callbacks are made with.
    records = [one for one in setup.callbacks.everyone if getattr(one, "holds_settings_of_the_run", False)]
    states = {name: list(s) if isinstance(s, list) else [s] for name, s in setup.state.stateful_callbacks.items()}
    for callback in records or setup.callbacks.everyone:
        name = type(callback).__name__
        if not states.get(name) or not callable(getattr(callback, "state", None)):
            continue
        before = states[name].pop(0)
        now = callback.state()
        if not isinstance(before, dict) or not isinstance(now, dict):
            continue
        old, new = before.get("args") or {}, now.get("args") or {}
        if records:
            found += _settings_that_differ(old, new)
        else:
            differing = differing_arguments(old, new)
            found += [one._replace(what=f"{name}.{one.what}", effect=Effect.COURSE.value) for one in differing]
    return found


def _of_given_tools(setup: Setup, run: TrainingRun, so_far: CourseSoFar | None) -> list[Change]:
    """What the script's own optimizer and schedule are made with otherwise."""
    if so_far is None or run.made is None:
        return []
    found: list[Change] = []
    if not _follows_arguments(setup) or is_users_own(setup.hooks(), "create_optimizer"):
        for number, (old, new) in enumerate(zip(so_far.made.groups, run.made.groups, strict=True)):
            where = "optimizer" if len(run.made.groups) == 1 else f"optimizer.groups.{number}"
            found += _changed(where, old, new)
    if not setup.own_scheduler and not _follows_arguments(setup) and so_far.made.schedule is not None:
        found += _changed("schedule", without_rates(so_far.made) or {}, without_rates(run.made) or {})
    return found


def _follows_arguments(setup: Setup) -> bool:
    """Return True where the optimizer is made from the arguments, by us or by a front door's module."""
    return setup.own_optimizer or bool(getattr(setup.module, "follows_arguments", False))


def _changed(where: str, old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    names = [name for name in new if name in old and old[name] != new[name]]
    return [Change(f"{where}.{name}", old[name], new[name], Effect.COURSE.value) for name in names]


def _forget_another_metric(setup: Setup, changes: list[Change]) -> None:
    """The best value so far was of another metric, or of other data."""
    if any(change.what in _JUDGED_BY or change.what.startswith(_JUDGED_ON) for change in changes):
        state = setup.state
        state.best_metric = state.best_global_step = state.best_model_checkpoint = None
        forget_metric(setup.lr_scheduler)
