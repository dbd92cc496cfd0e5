"""Reading files that another library pickled. The one place in the package that calls ``torch.load``.

A pickle is a program. torch's ``weights_only=True`` runs only the part of it that builds tensors and plain containers;
whatever needs more is refused here, and there is no second attempt without that restriction.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_WANTED_CLASS = re.compile(r"GLOBAL ([\w.]+)")


class UnreadableCheckpoint(ValueError):
    """A foreign checkpoint that cannot be read, or must not be."""


def read_pickle(path: Path, allowed: Sequence[Any] = (), way_out: str = "") -> Any:
    """What ``path`` holds, if that is tensors and plain containers (and ``allowed`` classes); refuses anything else."""
    try:
        # By its contents: given a path, torch goes by the ending of the name.
        with path.open("rb") as file, torch.serialization.safe_globals(list(allowed)):
            return torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UnreadableCheckpoint(f"{path} is missing.") from None
    except Exception as error:
        # Anything: the unpickler has no error class of its own that is not pickle's.
        raise UnreadableCheckpoint(_in_words(path, error, way_out)) from None


def _in_words(path: Path, error: Exception, way_out: str) -> str:
    wanted = _WANTED_CLASS.search(str(error))
    if wanted is not None:
        return (
            f"{path} was refused and nothing in it was run: it asks for {wanted.group(1)}, and only tensors and plain "
            f"containers are read. {way_out or 'Do not open it with anything that would run it unless you made it.'}"
        )
    first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"{path} cannot be read: it is damaged or no torch file ({first_line[:200]}). Take another checkpoint."


def numpy_state_classes() -> list[Any]:
    """What the state of numpy's generator needs besides plain containers: an array of 32-bit numbers, no more."""
    rebuild = np.empty(0, dtype=np.uint32).__reduce__()[0]
    # numpy 1 and 2 write this function under different names.
    names = ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
    return [*((rebuild, name) for name in names), np.ndarray, np.dtype, type(np.dtype(np.uint32))]


def plain(value: object, where: str) -> Any:
    """``value`` as JSON data: one-element tensors become numbers, tuples lists; what is neither is refused."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, dict):
        return {str(key): plain(part, where) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part, where) for part in value]
    raise UnreadableCheckpoint(
        f"{where} holds a {type(value).__name__}, which a checkpoint of ours cannot keep: only numbers, text, lists "
        "and dicts can be imported there."
    )


def needs(value: object, kind: type, where: str) -> Any:
    """``value``, after checking its type: a file that is not what it seems is refused with its name."""
    if not isinstance(value, kind):
        raise UnreadableCheckpoint(f"{where} should be a {kind.__name__} and is a {type(value).__name__}.")
    return value


def tensors_of(value: object, where: str) -> dict[str, Tensor]:
    """``value`` as named tensors."""
    state = needs(value, dict, where)
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise UnreadableCheckpoint(
                f"{where} should hold named tensors; {name!r} is a {type(tensor).__name__}. "
                "Save the model's state_dict() and nothing else there."
            )
    return dict(state)
