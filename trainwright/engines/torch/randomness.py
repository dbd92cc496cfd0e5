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


def torch_states() -> dict[str, Tensor]:
    """State of torch's generators, one for each device in use."""
    states = {"torch": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        states |= {f"cuda.{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def restore_torch(states: dict[str, Tensor]) -> None:
    """Inverse of :func:`torch_states`; GPU states only where there are as many GPUs as there were."""
    torch.set_rng_state(states["torch"])
    devices = [states[f"cuda.{index}"] for index in range(len(states)) if f"cuda.{index}" in states]
    if devices and torch.cuda.is_available() and len(devices) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(devices)


def as_stored(python: Any, array: Any, torch_part: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """States as a checkpoint keeps them: arrays as tensors, the rest as JSON."""
    version, words, gauss = python
    tensors = {
        "python": torch.tensor(words, dtype=torch.int64),
        "numpy": torch.from_numpy(array["state"]["key"].astype(np.int64)),
        **torch_part,
    }
    numbers = {
        "python": {"version": version, "gauss": gauss},
        "numpy": {
            "kind": array["bit_generator"],
            "position": int(array["state"]["pos"]),
            "has_gauss": int(array["has_gauss"]),
            "cached": float(array["gauss"]),
        },
    }
    return tensors, numbers


def random_state() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """State of all generators as they are now."""
    return as_stored(random.getstate(), np.random.get_state(legacy=False), torch_states())


def random_state_from(seed: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state that all generators have after ``set_seed(seed)``; they stay as they are."""
    before = random_state()
    try:
        set_seed(seed)
        return random_state()
    finally:
        set_random_state(*before)


def set_random_state(tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    """Restore what ``random_state`` returned."""
    python, array = numbers["python"], numbers["numpy"]
    random.setstate((python["version"], tuple(tensors["python"].tolist()), python["gauss"]))
    keys = tensors["numpy"].numpy().astype(np.uint32)
    np.random.set_state((array["kind"], keys, array["position"], array["has_gauss"], array["cached"]))
    restore_torch({name: tensor for name, tensor in tensors.items() if name == "torch" or name.startswith("cuda.")})


RandomState = tuple[dict[str, Tensor], dict[str, Any]]


def with_own(state: RandomState, own: dict[str, Any]) -> RandomState:
    """``state`` with those of generators that users' objects keep for themselves, as JSON by their paths."""
    return (state[0], {**state[1], "own": own}) if own else state


def of_all_processes(states: list[RandomState]) -> RandomState:
    """The random states of several processes as one; that of the first keeps its names."""
    tensors, numbers = dict(states[0][0]), dict(states[0][1])
    for rank, (own_tensors, own_numbers) in enumerate(states[1:], 1):
        tensors |= {f"process.{rank}.{name}": tensor for name, tensor in own_tensors.items()}
        numbers[f"process.{rank}"] = own_numbers
    return tensors, numbers


def of_process(state: RandomState, rank: int) -> RandomState | None:
    """One process's part of :func:`of_all_processes`; None where it is not there."""
    tensors, numbers = state
    if rank == 0:
        return {n: t for n, t in tensors.items() if not n.startswith("process.")}, numbers
    prefix = f"process.{rank}"
    if prefix not in numbers:
        return None
    own = {name.removeprefix(f"{prefix}."): t for name, t in tensors.items() if name.startswith(f"{prefix}.")}
    return own, numbers[prefix]
