"""Copies of objects of any kind: with a state of their own, also where a lock or a file in them cannot be copied."""

from __future__ import annotations

import copy
import copyreg
import io
import sys
import types
from collections.abc import Iterator
from itertools import islice
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from trainwright.config.origin import class_if_imported
from trainwright.proving.refusals import is_refusal

Memo = dict[int, Any]

#: Bytes of an array, and entries of a container, from which on they are shared where they are a dataset's.
_DATA_BYTES, _DATA_ENTRIES = 2**16, 1000
#: How far from a dataset something lies that is still looked at, and how many entries of its tables.
_DEEPEST, _MOST_ENTRIES = 5, 200_000
#: What a training changes: never shared.
_NEVER_SHARED = (
    torch.nn.Module,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.utils.data.Dataset,
    torch.utils.data.Sampler,
)
_ATOMS = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, str, bytes, int, float, complex)


class Untouched:
    """Stands for what cannot be copied and would not be what it was for the training, had a copy used it."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __iter__(self) -> Untouched:
        return self

    def __next__(self) -> NoReturn:
        raise ValueError(self._why)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ValueError(self._why)


def duplicate(value: Any, memo: Memo, *, may_share: bool = True) -> Any:
    """A copy with a state of its own, in which references lead to what ``memo`` says.

    What refuses to be copied (a lock, a connection) is shared by an object and its copy; an open iterator is not, nor
    ``value`` itself where it ``may_share`` nothing.
    """
    # A copy that fails leaves half of what it made in its notes.
    trial = dict(memo)
    try:
        found = copy.deepcopy(value, trial)
    except Exception as error:
        # Objects may refuse to be copied in any way they like.
        return _part_by_part(value, memo, error, may_share)
    kept_alive = trial.pop(id(trial), [])
    memo.update(trial)
    memo.setdefault(id(memo), []).extend(kept_alive)
    return found


def _part_by_part(value: Any, memo: Memo, error: Exception, may_share: bool) -> Any:
    found = _special(value, memo)
    if found is None:
        found = _rebuilt(value, memo)
    if found is None and hasattr(value, "__next__"):
        found = Untouched(
            f"The data is read from an open {type(value).__name__}, which cannot be copied: what prove reads of it, "
            "the training would not get. Give prove data that can be read again: a dataset with an index, or one whose "
            "__iter__ opens what it reads anew each time."
        )
    if found is None:
        if isinstance(value, _NEVER_SHARED) or not may_share:
            raise ValueError(
                f"prove trains copies, and {type(value).__name__} cannot be copied ({type(error).__name__}: {error}): "
                "give it a __deepcopy__ that returns one with a state of its own."
            ) from error
        found = value
    memo[id(value)] = found
    memo.setdefault(id(memo), []).append(value)
    return found


def _special(value: Any, memo: Memo) -> Any:
    """A copy of what Python does not know how to copy, or None."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, torch.Generator):
        return torch.Generator(value.device).set_state(value.get_state())
    if isinstance(value, io.IOBase):
        return _opened_again(value)
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(duplicate(part, memo) for part in value)
    if type(value) is dict:
        return {duplicate(name, memo): duplicate(part, memo) for name, part in value.items()}
    if isinstance(value, types.MethodType):
        return types.MethodType(value.__func__, duplicate(value.__self__, memo))
    return None


def _opened_again(file: Any) -> Any:
    """The same place of the same file, if it is read; something that refuses to be used, if not."""
    if any(file is one for one in (sys.stdin, sys.stdout, sys.stderr)):
        return file
    name, mode = getattr(file, "name", None), getattr(file, "mode", None)
    try:
        if isinstance(name, str) and mode in ("r", "rb"):
            place, known = file.tell(), {"encoding": file.encoding, "errors": file.errors} if mode == "r" else {}
            again = open(name, mode, **known)  # noqa: SIM115 - it lives as long as whoever reads it
            again.seek(place)
            return again
    except (OSError, ValueError):
        # Closed, gone, or read line by line.
        pass
    return Untouched(
        f"prove trains copies, and the open {type(file).__name__} {name or 'in memory'} cannot be opened once more: "
        "what a copy does with it, it would do to yours. Open it where it is used."
    )


def _rebuilt(value: Any, memo: Memo) -> Any:
    """An object with a copy of each attribute; None where its class has a way of its own to be copied."""
    kind = type(value)
    # At its end a copy would close what it shares.
    if hasattr(kind, "__deepcopy__") or hasattr(kind, "__del__") or isinstance(value, _ATOMS):
        return None
    try:
        make, arguments, state, items, pairs = (*value.__reduce_ex__(4), None, None, None)[:5]
    except Exception:
        return None
    if not (isinstance(make, type) or make is copyreg.__dict__["__newobj__"]):
        return None
    try:
        found = make(*(duplicate(one, memo) for one in arguments))
        # It may lead to itself.
        memo[id(value)] = found
        memo.setdefault(id(memo), []).append(value)
        _fill(found, duplicate(state, memo))
        for item in items or ():
            found.append(duplicate(item, memo))
        for name, part in pairs or ():
            found[duplicate(name, memo)] = duplicate(part, memo)
    except Exception as error:
        if is_refusal(error):
            raise
        memo.pop(id(value), None)
        return None
    return found


def _fill(found: Any, state: Any) -> None:
    if state is None:
        return
    if hasattr(found, "__setstate__"):
        found.__setstate__(state)
        return
    attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    vars(found).update(attributes or {})
    for name, part in (slots or {}).items():
        setattr(found, name, part)


def share_data(dataset: Any, memo: Memo) -> None:
    """Note in ``memo`` what copies of ``dataset`` have in common: large arrays and tables.

    Tables that are part of it are copied without their entries, and numpy's arrays cannot be written by a copy.
    """
    if isinstance(dataset, (list, tuple)) and len(dataset) > _DATA_ENTRIES:
        # Nobody writes into them: they have no code of their own.
        memo[id(dataset)] = dataset
    for one in _large_parts(dataset):
        if id(one) not in memo:
            memo[id(one)] = _without_its_own(one)
    if isinstance(dataset, torch.utils.data.DataLoader):
        # Of a training that has been: it belongs to that one's processes.
        memo[id(vars(dataset).get("_iterator"))] = None


def _without_its_own(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        view = value.view()
        view.flags.writeable = False
        return view
    return copy.copy(value) if isinstance(value, (list, dict, set)) else value


def _large_parts(value: Any, depth: int = 0, seen: set[int] | None = None) -> Iterator[Any]:
    """Arrays and tables below a dataset that are large."""
    seen = set() if seen is None else seen
    if depth > _DEEPEST or id(value) in seen or isinstance(value, (*_ATOMS, torch.nn.Module)):
        return
    seen.add(id(value))
    parts: Any = getattr(value, "__dict__", {}).values()
    if isinstance(value, (Tensor, np.ndarray)):
        is_data = not getattr(value, "requires_grad", False) and value.nbytes > _DATA_BYTES
        parts = ()
    elif isinstance(value, (list, tuple, set, dict)):
        is_data = len(value) > _DATA_ENTRIES
        parts = () if is_data else value.values() if isinstance(value, dict) else value
    else:
        # They cannot be written.
        is_data = isinstance(value, class_if_imported("pyarrow", "Table"))
        parts = () if is_data else parts
    if is_data:
        yield value
    for part in parts:
        yield from _large_parts(part, depth + 1, seen)


def wrote_what_is_shared(error: Exception) -> bool:
    """Whether a copy tried to write into an array that it shares; numpy has no class of error for it."""
    return isinstance(error, ValueError) and "read-only" in str(error)


def shared_tensors(dataset: Any) -> list[tuple[Tensor, int]]:
    """Tensors that copies of ``dataset`` share, each with the number of times it was written."""
    found: list[tuple[Tensor, int]] = []
    for part in _large_parts(dataset):
        entries: Any = part.values() if isinstance(part, dict) else part
        rows = islice(entries, _MOST_ENTRIES) if isinstance(part, (list, tuple, set, dict)) else (part,)
        for row in rows:
            values = row.values() if isinstance(row, dict) else row if isinstance(row, (list, tuple)) else (row,)
            found += [(one, one._version) for one in values if isinstance(one, Tensor) and not one.is_inference()]
    return found
