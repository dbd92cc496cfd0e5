"""What the engine asks of a strategy, and the one for a model that is not spread at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.core.backend import Backend


class Strategy:
    """One copy of the model, whose gradients the backend sums (or, alone, leaves as they are)."""

    name = "sp"
    #: Each process holds only parts of the weights: whoever reads one whole must gather it.
    is_sharded = False
    #: Forward or backward passes exchange something, so every process must run as many of them as the others.
    runs_in_step = False
    #: Gradients are exchanged by a step's last backward pass, which every process must therefore run.
    sums_in_backward = False
    #: What a loss is multiplied by before its backward pass, where gradients are averaged and not summed.
    gradient_factor = 1.0
    #: Neighbouring processes that have the same samples.
    copies = 1

    def spread(self, model: nn.Module, backend: Backend, called: nn.Module | None = None) -> nn.Module:
        """Take the model, all processes starting with the weights of the first; returns it as it is to be called.

        ``called`` is the model as it would be called without a strategy: compiled, say.
        """
        backend.share([*model.parameters(), *model.buffers()])
        return model if called is None else called

    @contextlib.contextmanager
    def micro_batch(self, *, sync: bool) -> Iterator[None]:
        """Around forward and backward of one micro-batch; ``sync`` for the last of a step."""
        yield

    def recover(self) -> None:
        """Put the model back in order after a pass that was broken off."""

    def reduce(self, backend: Backend, parameters: Sequence[Tensor], extra: Sequence[Tensor]) -> None:
        """After a step's last backward pass: gradients of all processes, where they are not summed already.

        ``extra`` are those of ``parameters`` that are not the model's.
        """
        backend.reduce_gradients(parameters)

    def clip(self, parameters: Sequence[Tensor], most: float) -> Tensor:
        """Scale gradients so that their norm over the whole model is at most ``most``; returns what it was."""
        return nn.utils.clip_grad_norm_(parameters, most)

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm over the whole model."""
        return nn.utils.get_total_norm(gradients)


@contextlib.contextmanager
def silenced(loss: Tensor) -> Iterator[None]:
    """Within it the backward pass of ``loss`` gives zeros, whatever NaN the graph holds; hooks fire as always.

    A process with nothing to learn in a step must not fall out of step with the others, which wait for its gradients.
    """
    handles = [leaf.register_hook(torch.zeros_like) for leaf in leaves_of(loss)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def leaves_of(loss: Tensor) -> list[Tensor]:
    """Parameters that the graph of ``loss`` ends in."""
    found: dict[int, Tensor] = {}
    waiting: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found[id(leaf)] = leaf
        waiting += [following for following, _ in node.next_functions]
    return list(found.values())
