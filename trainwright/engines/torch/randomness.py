"""Seeds, and the state of every generator the main process draws from."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seed Python, numpy and torch (all devices); ``deterministic`` also refuses nondeterministic kernels.

    >>> set_seed(42)
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)


def enable_full_determinism(seed: int) -> None:
    """Seed everything and make torch choose only deterministic kernels; slower, for debugging."""
    # cuBLAS reads this when it is first used; without it deterministic matmuls raise.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    set_seed(seed, deterministic=True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def random_state() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """State of all generators: arrays as tensors, the rest as JSON."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    tensors = {
        "python": torch.tensor(words, dtype=torch.int64),
        "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        tensors |= {f"cuda.{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    numbers = {
        "python": {"version": version, "gauss": gauss},
        "numpy": {"kind": str(kind), "position": int(position), "has_gauss": int(has_gauss), "cached": float(cached)},
    }
    return tensors, numbers


def set_random_state(tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    """Restore what ``random_state`` returned."""
    python, array = numbers["python"], numbers["numpy"]
    random.setstate((python["version"], tuple(tensors["python"].tolist()), python["gauss"]))
    keys = tensors["numpy"].numpy().astype(np.uint32)
    np.random.set_state((array["kind"], keys, array["position"], array["has_gauss"], array["cached"]))
    torch.set_rng_state(tensors["torch"])
    devices = [tensors[f"cuda.{i}"] for i in range(len(tensors)) if f"cuda.{i}" in tensors]
    if devices and torch.cuda.is_available() and len(devices) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(devices)
