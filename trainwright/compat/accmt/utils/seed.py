"""The seed of a script."""

from __future__ import annotations

import torch

from trainwright.engines.torch.randomness import set_seed

__all__ = ["get_seed", "set_seed"]

#: What torch begins every process with, before anybody sets a seed.
_UNSET = 67280421310721


def get_seed(default: int | None = None) -> int | None:
    """The seed that was set, with ``set_seed`` or ``torch.manual_seed``; ``default`` where none was."""
    seed = torch.initial_seed()
    return default if seed == _UNSET else seed
