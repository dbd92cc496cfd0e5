"""Tensors of which every process has a part (torch's DTensors), known by what they can do: nothing is imported."""

from __future__ import annotations

from typing import Any


def is_dtensor(tensor: Any) -> bool:
    """Whether every process has a part of ``tensor``."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def whole(tensor: Any) -> Any:
    """All of ``tensor``; where it is spread, every process must ask."""
    return tensor.full_tensor() if is_dtensor(tensor) else tensor
