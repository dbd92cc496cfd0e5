"""Optimizer, schedule, scaler and random state on disk: tensors in safetensors, the rest in JSON, never a pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from trainwright.checkpoint.optimizer_state import comes_back, parameter_of
from trainwright.checkpoint.sharded import StoredTensors, is_stored
from trainwright.checkpoint.states import join_state, split_state

OPTIMIZER = "optimizer.safetensors"
RANDOM = "random.safetensors"
TRAINING = "training_state.json"
CALLBACKS = "callbacks.safetensors"
#: Beside "scheduler": those of its entries that JSON would change.
SCHEDULE_MORE = "scheduler_more"


def only_json(values: dict[str, Any]) -> dict[str, Any]:
    """``values``, after checking that they are JSON: what is not would be lost on resume."""
    try:
        json.dumps(values)
    except TypeError as error:
        raise ValueError(
            f"The training state cannot be stored as JSON ({error}). A custom optimizer or scheduler must keep only "
            "tensors and plain numbers in its state_dict()."
        ) from error
    return values


def more_of_schedule(state: dict[str, Any]) -> dict[str, Any]:
    """The entries of a schedule's state that JSON would change: it has no tuples, and its keys are text."""
    return {key: split_state(value, f"its {key}")[1] for key, value in state.items() if not comes_back(value)}


def stored_schedule(rest: dict[str, Any]) -> dict[str, Any] | None:
    """The schedule's state as it was."""
    if rest["scheduler"] is None:
        return None
    exact = {key: join_state({}, value) for key, value in rest.get(SCHEDULE_MORE, {}).items()}
    return {**rest["scheduler"], **exact}


def load_training_state(
    folder: Path, parameters: Mapping[str, Tensor] | None = None
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Read the three files; a missing one is an error, since resuming without it would not be the same run.

    What belongs to one of ``parameters`` that is in parts is read as the same part.
    """
    missing = [name for name in (OPTIMIZER, RANDOM, TRAINING) if not is_stored(folder, name)]
    if missing:
        raise ValueError(
            f"{folder} has no {missing[0]}, so training cannot continue exactly from it (was it saved with "
            "save_only_model=True?). Load the weights with from_pretrained and start a new run instead."
        )
    rest = json.loads((folder / TRAINING).read_text(encoding="utf-8"))
    stored = StoredTensors(folder, OPTIMIZER)
    optimizer = {name: _as_its_parameter(stored, name, parameters or {}) for name in stored}
    return optimizer, dict(StoredTensors(folder, RANDOM)), rest


def _as_its_parameter(stored: StoredTensors, name: str, parameters: Mapping[str, Tensor]) -> Tensor:
    owner = parameters.get(parameter_of(name, parameters))
    return stored[name] if owner is None else stored.spread_like(name, owner)
