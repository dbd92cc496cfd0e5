"""An optimizer's ``state_dict()`` as tensors by name and JSON, and back.

    state.<parameter>.<key>   a tensor of a parameter's state; its numbers and lists are in the JSON, by the same names
    more.<...>                a tensor of anything else: deeper states, states of no parameter, settings of groups

Whatever JSON would change (tuples, numbers as keys) is in the JSON a second time, under "more", in the words of
:mod:`trainwright.checkpoint.states`. So the plain part can be read by itself, as older versions wrote it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainwright.checkpoint.left_out import LeftOut
from trainwright.checkpoint.pack import why_unstorable
from trainwright.checkpoint.states import join_state, split_state
from trainwright.checkpoint.weights import place_in_memory
from trainwright.core.dtensors import is_dtensor

#: Names of tensors in an optimizer's state that are not of their parameter's type.
OWN_TYPE = "of_own_type"
#: What the plain part does not hold, or not exactly: kind, keys and value of each.
MORE = "more"
#: Tensors that are one and the same: the name of each -> that of the first.
SHARED = "shared"
#: Names under "more" of tensors that were not in main memory.
_ON_DEVICE = "on_device"
#: Marks a list of which some items are tensors, and stored as such.
_LIST = "list with tensors"


def flatten_optimizer(
    state: dict[str, Any], names: list[str], left_out: LeftOut | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """``optimizer.state_dict()`` as tensors by name (not copied) and JSON.

    What is neither is refused or, with ``left_out``, noted there.
    """
    flat = _Flat(left_out)
    for number, entries in state["state"].items():
        if type(number) is int and 0 <= number < len(names) and isinstance(entries, dict):
            for key, value in entries.items():
                flat.add_entry(names[number], key, value)
        else:
            # MADGRAD counts its steps here, others keep what belongs to no parameter.
            flat.add_more("state", number, entries)
    groups = [flat.plain_group(index, group) for index, group in enumerate(state["param_groups"])]
    for key, value in state.items():
        if key not in ("state", "param_groups"):
            flat.add_more("beside", key, value)
    return flat.tensors, {"state": flat.values, "param_groups": groups, **flat.notes()}


def unflatten_optimizer(tensors: Mapping[str, Tensor], values: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The inverse of :func:`flatten_optimizer`."""
    index_of = {name: index for index, name in enumerate(names)}
    one = {**tensors, **{name: tensors[first] for name, first in values.get(SHARED, {}).items()}}
    state: dict[Any, Any] = {}
    for flat, tensor in one.items():
        if is_more(flat):
            continue
        name, key = split_name(flat)
        if name not in index_of:
            raise ValueError(f"The checkpoint's optimizer has state for {name!r}, which this model does not train.")
        state.setdefault(index_of[name], {})[key] = tensor
    for name, entries in values["state"].items():
        own = state.setdefault(index_of[name], {})
        own.update({key: _joined_list(own, key, value) for key, value in entries.items()})
    whole = {"state": state, "param_groups": [dict(group) for group in values["param_groups"]]}
    for entry in values.get(MORE, ()):
        exact = join_state(one, entry["value"])
        if "parameter" in entry:
            state.setdefault(index_of[entry["parameter"]], {}).update(exact)
        elif "group" in entry:
            whole["param_groups"][entry["group"]].update(exact)
        else:
            (state if entry["kind"] == "state" else whole).update(exact)
    return whole


def split_name(flat: str) -> tuple[str, str]:
    """Parameter (name or number) and kind of ``state.<parameter>.<kind>``."""
    parameter, kind = flat.removeprefix("state.").rsplit(".", 1)
    return parameter, kind


def is_more(name: str) -> bool:
    """Return True for a tensor that is no plain entry of a parameter's state."""
    return name.startswith(f"{MORE}.")


def on_device(tensors: Mapping[str, Tensor], values: dict[str, Any], device: torch.device) -> dict[str, Tensor]:
    """``tensors``, with those moved to ``device`` that torch itself does not move and that were on one."""
    return {**tensors, **{name: tensors[name].to(device) for name in values.get(_ON_DEVICE, ())}}


def of_own_type(tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> list[str]:
    """Name the tensors of an optimizer's state that have another type than their parameter.

    A resume must know them: torch casts all but the step to the parameter's type.
    """
    found = {name: parameters.get(parameter_of(name, parameters)) for name in tensors if not name.endswith(".step")}
    return sorted(name for name, owner in found.items() if owner is not None and owner.dtype != tensors[name].dtype)


def parameter_of(name: str, parameters: Mapping[str, Tensor]) -> str:
    """The parameter that a stored tensor belongs to: ``layer.weight`` for ``state.layer.weight.exp_avg``."""
    words = name.split(".")
    starts = (".".join(words[1:end]) for end in range(len(words) - 1, 1, -1))
    return next((start for start in starts if start in parameters), "")


class _Flat:
    """Takes a state apart."""

    def __init__(self, left_out: LeftOut | None) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.values: dict[str, dict[str, Any]] = {}
        self._more: list[dict[str, Any]] = []
        self._left_out = left_out

    def add_entry(self, name: str, key: Any, value: Any) -> None:
        """One entry of a parameter's state."""
        where = f"state.{name}.{key}"
        if type(key) is not str or "." in key or "[" in key:
            self.add_more("parameter", key, value, name)
        elif isinstance(value, Tensor) and why_unstorable(value) is None:
            self.tensors[where] = value.detach()
        elif _is_list_with_tensors(value):
            # LBFGS keeps the steps and gradients of its past.
            items = {f"{where}[{place}]": item for place, item in enumerate(value)}
            self.tensors |= {name: item.detach() for name, item in items.items() if isinstance(item, Tensor)}
            plain = [None if isinstance(item, Tensor) else item for item in value]
            self.values.setdefault(name, {})[key] = {_LIST: plain}
        elif comes_back(value):
            self.values.setdefault(name, {})[key] = value
        else:
            self.add_more("parameter", key, value, name)

    def plain_group(self, index: int, group: dict[str, Any]) -> dict[str, Any]:
        """The settings of a group that are JSON, be it only nearly; the exact ones are added to the rest."""
        plain: dict[str, Any] = {}
        for key, value in group.items():
            if type(key) is str and comes_back(value):
                plain[key] = value
                continue
            if type(key) is str and (near := _nearly(value)) is not None:
                plain[key] = near
            self.add_more("group", key, value, index)
        return plain

    def add_more(self, kind: str, key: object, value: object, owner: str | int | None = None) -> None:
        """An entry that the plain part cannot hold, or not exactly; ``owner`` is its parameter or its group."""
        start = (MORE, owner) if kind == "parameter" else (MORE, kind, *([] if owner is None else [owner]))

        def split() -> tuple[dict[str, Tensor], Any]:
            return split_state({key: value}, "the optimizer's state", start, self.tensors)

        attempt = self._left_out.attempt if self._left_out is not None else _insist
        found = attempt(f"{key!r} of the optimizer", split, None)
        if found is not None:
            self.tensors |= found[0]
            self._more.append({"kind": kind, **({} if owner is None else {kind: owner}), "value": found[1]})

    def notes(self) -> dict[str, Any]:
        away = sorted(n for n, t in self.tensors.items() if is_more(n) and t.device.type != "cpu")
        found = {MORE: self._more, SHARED: _shared(self.tensors), _ON_DEVICE: away}
        return {name: value for name, value in found.items() if value}


def _insist(what: str, work: Any, otherwise: Any) -> Any:
    return work()


def _shared(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Tensors that are the same memory as one before: the name of each, and of the first."""
    first: dict[Any, str] = {}
    found: dict[str, str] = {}
    for name, tensor in tensors.items():
        # Tensors that wrap others have no address of their own.
        place = place_in_memory(tensor) if is_dtensor(tensor) or tensor.data_ptr() else None
        if place is not None and first.setdefault(place, name) != name:
            found[name] = first[place]
    return found


def _is_list_with_tensors(value: object) -> bool:
    if type(value) is not list or not any(isinstance(item, Tensor) for item in value):
        return False
    return all(why_unstorable(item) is None if isinstance(item, Tensor) else comes_back(item) for item in value)


def _joined_list(entries: dict[str, Any], key: str, value: object) -> Any:
    """``value``, with its tensors put back where it is a list that had some."""
    if not isinstance(value, dict) or set(value) != {_LIST}:
        return value
    return [entries.pop(f"{key}[{place}]", item) for place, item in enumerate(value[_LIST])]


def comes_back(value: object) -> bool:
    """Return True where JSON gives ``value`` back as it is.

    >>> comes_back([1, "two", None]), comes_back((1, 2)), comes_back({1: 2})
    (True, False, False)
    """
    if value is None or type(value) in (bool, int, str):
        return True
    if type(value) is float:
        return math.isfinite(value)
    if isinstance(value, dict) and _LIST in value:
        return False
    near = _nearly(value)
    return not isinstance(value, Tensor) and near is not None and near == value


def _nearly(value: object) -> Any:
    """What JSON, or a plain number, makes of ``value``; None where it makes nothing of it."""
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 and why_unstorable(value) is None and not value.is_complex() else None
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        return None
