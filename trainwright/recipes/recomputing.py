"""Gradient checkpointing runs a part of the model a second time; what looks on must not count that."""

from __future__ import annotations

import torch


def is_recomputing() -> bool:
    """Whether a forward pass runs inside a backward one: the same batch again, for its gradients.

    >>> is_recomputing()
    False
    """
    # Compiled code plans its own recomputation, and cannot be asked.
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
