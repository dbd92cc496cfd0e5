"""Tensors and objects of all processes together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainwright.compat.accmt.this_process import ThisProcess


def gather(tensor: Tensor, num_processes: int | None = None) -> Tensor:
    """The rows of all processes, or of the first ``num_processes``, one after another."""
    found = gather_object(tensor.detach().cpu(), num_processes)
    return torch.cat(found).to(tensor.device) if isinstance(found, list) else tensor


def gather_into_single_process(tensor: Tensor, dst: int = 0, remainder: int = 0) -> Tensor | None:
    """The rows of all processes in process ``dst``, without the last ``remainder`` of them; None in the others."""
    process = ThisProcess()
    if not process.use_distributed:
        return tensor
    found = gather(tensor.reshape(1) if tensor.ndim == 0 else tensor)
    if process.process_index != dst:
        return None
    return found[: len(found) - remainder]


def gather_object(obj: Any, num_processes: int | None = None) -> Any:
    """What each process has, in a list; with one process the object itself."""
    process = ThisProcess()
    if not process.use_distributed:
        return obj
    return process.gather_for_metrics([obj], use_gather_object=True)[:num_processes]


def all_gather_dictionary(tensors: dict[Any, Tensor]) -> dict[Any, Tensor]:
    """The rows of all processes under each key; a process need not have every key."""
    parts = gather_object({key: tensor.detach().cpu() for key, tensor in tensors.items()})
    if isinstance(parts, dict):
        return tensors
    keys = dict.fromkeys(key for part in parts for key in part)
    device = ThisProcess().device
    return {key: torch.cat([part[key] for part in parts if key in part]).to(device) for key in keys}
