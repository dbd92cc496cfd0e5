"""Optimizer, schedule, scaler and random state on disk: tensors in safetensors, the rest in JSON, never a pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from trainwright.checkpoint.left_out import LeftOut
from trainwright.checkpoint.sharded import StoredTensors, is_stored

OPTIMIZER = "optimizer.safetensors"
RANDOM = "random.safetensors"
TRAINING = "training_state.json"
CALLBACKS = "callbacks.safetensors"
#: Marks a list of which some items are tensors, and stored as such.
_LIST = "list with tensors"


def flatten_optimizer(
    state: dict[str, Any], names: list[str], left_out: LeftOut | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """``optimizer.state_dict()`` as ``state.<parameter>.<key>`` tensors (not copied) and the other values as JSON.

    What is neither is refused or, with ``left_out``, noted there.
    """
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for index, entries in state["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"state.{names[index]}.{key}"] = value.detach()
            elif isinstance(value, list) and any(isinstance(item, Tensor) for item in value):
                # LBFGS keeps the steps and gradients of its past.
                items = {f"state.{names[index]}.{key}[{place}]": item for place, item in enumerate(value)}
                tensors |= {name: item.detach() for name, item in items.items() if isinstance(item, Tensor)}
                plain = [None if isinstance(item, Tensor) else item for item in value]
                values.setdefault(names[index], {})[key] = {_LIST: plain}
            elif value is not None:
                values.setdefault(names[index], {})[key] = value
    groups = [_plain_group(group) for group in state["param_groups"]]
    if left_out is not None:
        values = {name: _what_is_json(entries, left_out) for name, entries in values.items()}
        groups = [_what_is_json(group, left_out) for group in groups]
    return tensors, only_json({"state": values, "param_groups": groups})


def _what_is_json(entries: dict[str, Any], left_out: LeftOut) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in entries.items():
        kept |= left_out.attempt(f"{key!r} of the optimizer", lambda key=key, value=value: only_json({key: value}), {})
    return kept


def unflatten_optimizer(tensors: dict[str, Tensor], values: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The inverse of :func:`flatten_optimizer`."""
    index_of = {name: index for index, name in enumerate(names)}
    state: dict[int, dict[str, Any]] = {}
    for flat, tensor in tensors.items():
        name, key = flat.removeprefix("state.").rsplit(".", 1)
        if name not in index_of:
            raise ValueError(f"The checkpoint's optimizer has state for {name!r}, which this model does not train.")
        state.setdefault(index_of[name], {})[key] = tensor
    for name, entries in values["state"].items():
        own = state.setdefault(index_of[name], {})
        own.update({key: _joined_list(own, key, value) for key, value in entries.items()})
    return {"state": state, "param_groups": values["param_groups"]}


def _joined_list(entries: dict[str, Any], key: str, value: Any) -> Any:
    """``value``, with its tensors put back where it is a list that had some."""
    if not isinstance(value, dict) or set(value) != {_LIST}:
        return value
    return [entries.pop(f"{key}[{place}]", item) for place, item in enumerate(value[_LIST])]


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


def _plain_group(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value.item() if isinstance(value, Tensor) else value for key, value in group.items()}


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
    owner = parameters.get(name.removeprefix("state.").rsplit(".", 1)[0])
    return stored[name] if owner is None else stored.spread_like(name, owner)
