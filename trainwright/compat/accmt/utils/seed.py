"""The seed of a script."""

from __future__ import annotations

import torch

from trainwright.engines.torch.randomness import set_seed

__all__ = ["get_seed", "set_seed"]

#: Seeds that people set fit into numpy's 32 bits; those that torch draws for a process have 64.
_HIGHEST = 2**32


def get_seed(default: int | None = None) -> int | None:
    """The seed that was set, with ``set_seed`` or ``torch.manual_seed``; ``default`` where none was."""
    seed = torch.initial_seed()
    return seed if seed < _HIGHEST else default
