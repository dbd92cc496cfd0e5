"""A ``.ckpt`` file of Lightning, read without running anything in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainwright.checkpoint.interchange.foreign import Foreign, checked_optimizer, checked_schedule
from trainwright.checkpoint.interchange.reading import UnreadableCheckpoint, needs, plain, read_pickle, tensors_of
from trainwright.checkpoint.weights import WEIGHTS, stored_once
from trainwright.core.state import TrainerState

_WAY_OUT = (
    "Usually that is an object in hyper_parameters or in a callback's state: leave it out with "
    "self.save_hyperparameters(ignore=[...]), or load the file where it was made, keep "
    "state_dict, optimizer_states, lr_schedulers, global_step and epoch, and torch.save those."
)


def read_lightning(path: Path, strip_prefix: str | None) -> Foreign:
    """Everything of ``path`` that a resumed run needs; ``strip_prefix`` is taken off the names of the weights."""
    stored = needs(read_pickle(path, way_out=_WAY_OUT), dict, str(path))
    missing = [key for key in ("state_dict", "global_step", "optimizer_states") if key not in stored]
    if missing:
        raise UnreadableCheckpoint(
            f"{path} has no {missing[0]!r}, so it is not a checkpoint of a Lightning training "
            "(save_weights_only=True?). There is no training to go on with."
        )
    step = needs(stored["global_step"], int, "global_step")
    optimizers, schedules = stored["optimizer_states"], stored.get("lr_schedulers") or []
    for values, what in ((optimizers, "optimizers"), (schedules, "learning-rate schedules")):
        if len(needs(values, list, what)) > 1:
            raise UnreadableCheckpoint(f"{path} holds {len(values)} {what}; a run here has one, so it cannot go on.")
    if not optimizers:
        raise UnreadableCheckpoint(f"{path} holds no optimizer's state, so there is no training to go on with.")
    optimizer = checked_optimizer(optimizers[0], "optimizer_states")
    notes = [
        "Lightning keeps no random state; the resumed run takes that of its seed",
        "its place in the data is taken from the number of steps; the order of the samples is ours",
    ]
    names = tensors_of(stored["state_dict"], "state_dict")
    weights, more = _without_prefix(names, strip_prefix)
    schedule, still_more = _schedule(schedules, optimizer["param_groups"], step)
    precision = stored.get("MixedPrecision")
    scaler = plain(precision, "MixedPrecision") if isinstance(precision, dict) and "scale" in precision else None
    return Foreign(
        library="lightning",
        state=TrainerState(global_step=step, epoch=float(needs(stored.get("epoch", 0), int, "epoch"))),
        optimizer=optimizer,
        scheduler=schedule,
        scaler=scaler,
        random=None,
        weights={WEIGHTS: stored_once(weights)},
        notes=notes + more + still_more,
    )


def _without_prefix(state: dict[str, Any], prefix: str | None) -> tuple[dict[str, Any], list[str]]:
    if not prefix:
        first = {name.split(".")[0] for name in state}
        if len(first) == 1 and all("." in name for name in state):
            start = f"{first.pop()}."
            return state, [
                f"every weight's name begins with {start!r}: if your model's do not, use --strip-prefix {start}"
            ]
        return state, []
    kept = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    if not kept:
        raise UnreadableCheckpoint(
            f"No weight's name begins with {prefix!r}; they are called {', '.join(sorted(state)[:3])} and so on. "
            "Change --strip-prefix."
        )
    left = [name for name in state if not name.startswith(prefix)]
    return kept, [f"left out, since their names do not begin with {prefix!r}: {', '.join(left[:5])}"] if left else []


def _schedule(schedules: list[Any], groups: list[dict[str, Any]], step: int) -> tuple[dict[str, Any], list[str]]:
    """The schedule's state; where it counted something else than updates, or there was none, its place is ``step``."""
    state = checked_schedule(schedules[0], "lr_schedulers") if schedules else {}
    if state.get("last_epoch") == step or "best" in state:
        return state, []
    base = [group.get("initial_lr", group.get("lr")) for group in groups]
    place = {"base_lrs": base, "_last_lr": [group.get("lr") for group in groups], **state}
    why = "its schedule did not count updates" if schedules else "it had no schedule"
    note = f"{why}; the schedule of the resumed run's arguments (lr_scheduler_type) goes on from step {step}"
    return {**place, "last_epoch": step, "_step_count": step + 1}, [note]
