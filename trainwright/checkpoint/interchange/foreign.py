"""What a foreign checkpoint holds, in the form a checkpoint of ours keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from trainwright.checkpoint.interchange.reading import UnreadableCheckpoint, needs, plain
from trainwright.core.state import TrainerState

#: Names that a schedule's state must not take: they are its methods, or set by the run.
_NOT_STATE = {"optimizer", "step", "get_lr", "get_last_lr", "state_dict", "load_state_dict", "print_lr", "lr_lambdas"}


@dataclass
class Foreign:
    """A checkpoint of another library, read."""

    #: "transformers" or "lightning".
    library: str
    state: TrainerState
    #: As ``optimizer.state_dict()`` gives it: parameters by number.
    optimizer: dict[str, Any]
    scheduler: dict[str, Any]
    scaler: dict[str, Any] | None
    #: Tensors and numbers of the generators; None if the file has none.
    random: tuple[dict[str, Tensor], dict[str, Any]] | None
    #: Tensors for each file that is written anew.
    weights: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    #: Files that are copied as they are.
    copies: list[Path] = field(default_factory=list)
    #: What the user should know.
    notes: list[str] = field(default_factory=list)


def checked_optimizer(value: object, where: str) -> dict[str, Any]:
    """An optimizer's state dict, after checking that it is one."""
    state = needs(value, dict, where)
    if not isinstance(state.get("state"), dict) or not isinstance(state.get("param_groups"), list):
        raise UnreadableCheckpoint(f"{where} is not an optimizer's state_dict(): it lacks state or param_groups.")
    groups = [plain(group, f"{where}, param_groups") for group in state["param_groups"]]
    numbers = [number for group in groups for number in needs(group.get("params"), list, f"{where}, params")]
    if sorted(numbers) != list(range(len(numbers))) or not set(state["state"]) <= set(numbers):
        raise UnreadableCheckpoint(f"{where} does not number its parameters from 0 on, each once.")
    for number, entries in state["state"].items():
        needs(entries, dict, f"{where}, parameter {number}")
    return {"state": state["state"], "param_groups": groups}


def checked_schedule(value: object, where: str) -> dict[str, Any]:
    """A schedule's state as JSON."""
    state = plain(needs(value, dict, where), where)
    kept = {key: part for key, part in state.items() if key not in _NOT_STATE}
    best = kept.get("best")
    if isinstance(best, float) and best in (float("inf"), float("-inf")):
        # "Nothing seen yet": strict JSON has no infinity, and our schedules read None so.
        kept["best"] = None
    kept.pop("mode_worse", None)
    return kept
