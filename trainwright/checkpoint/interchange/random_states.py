"""States of the random generators, as transformers' ``rng_state.pth`` and as our checkpoints keep them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainwright.checkpoint.interchange.reading import UnreadableCheckpoint, needs

Stored = tuple[dict[str, Tensor], dict[str, Any]]

_PYTHON_WORDS, _NUMPY_WORDS = 625, 624


def from_transformers(value: object, where: str) -> Stored:
    """Ours from what ``rng_state.pth`` holds."""
    states = needs(value, dict, where)
    try:
        version, words, gauss = states["python"]
        kind, keys, position, has_gauss, cached = states["numpy"]
        tensors = {
            "python": torch.tensor([int(word) for word in words], dtype=torch.int64),
            "numpy": torch.from_numpy(np.asarray(keys, dtype=np.uint32).astype(np.int64)),
            "torch": needs(states["cpu"], Tensor, where),
        }
        numbers = {
            "python": {"version": int(version), "gauss": None if gauss is None else float(gauss)},
            "numpy": {
                "kind": str(kind),
                "position": int(position),
                "has_gauss": int(has_gauss),
                "cached": float(cached),
            },
        }
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UnreadableCheckpoint(f"{where} does not hold the states of the generators ({error!r}).") from None
    fits = len(tensors["python"]) == _PYTHON_WORDS and len(tensors["numpy"]) == _NUMPY_WORDS
    if not fits or numbers["numpy"]["kind"] != "MT19937":
        raise UnreadableCheckpoint(f"{where} holds states of generators that are not python's and numpy's usual ones.")
    return {**tensors, **_of_devices(states.get("cuda"))}, numbers


def _of_devices(value: object) -> dict[str, Tensor]:
    states = value if isinstance(value, (list, tuple)) else [value]
    return {f"cuda.{index}": state for index, state in enumerate(states) if isinstance(state, Tensor)}


def to_transformers(stored: Stored) -> dict[str, Any]:
    """What ``rng_state.pth`` holds, with numpy's array as a list, so that reading it needs no class of numpy's."""
    tensors, numbers = stored
    python, array = numbers["python"], numbers["numpy"]
    states: dict[str, Any] = {
        "python": (python["version"], tuple(tensors["python"].tolist()), python["gauss"]),
        "numpy": (
            array["kind"],
            tensors["numpy"].tolist(),
            array["position"],
            array["has_gauss"],
            array["cached"],
        ),
        "cpu": tensors["torch"].clone(),
    }
    if "cuda.0" in tensors:
        # A run of one process has its work on the first device; transformers keeps only that one's state.
        states["cuda"] = tensors["cuda.0"].clone()
    return states
