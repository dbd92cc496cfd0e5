"""The first batch by torch itself, so that what a captured graph has lost is found before a step is taken.

A graph holds torch's operations. What a model does beside them leaves no trace in it: a backward pass of its own, hooks
on tensors, weights that a forward pass rescales; and a decomposition of torch may be wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

logger = logging.getLogger("trainwright")
#: Frameworks round differently, and a rare value falls on the other side of a threshold; what was lost is no rounding.
_SHARE, _SHARE_IN_HALVES = 0.02, 0.2
#: A gradient that is nothing but rounding (of a bias before a softmax) is not compared with itself.
_FLOOR = 0.05


@dataclass
class Expected:
    """What torch computes of one batch."""

    outputs: list[Tensor]
    gradients: dict[str, Tensor] = field(default_factory=dict)
    #: Buffers after the pass.
    buffers: dict[str, Tensor] = field(default_factory=dict)


class Comparison:
    """Asked before the first batch of a training, and of an evaluation, of one model."""

    def __init__(self, engine: str, *, is_on: bool, halves: bool = False) -> None:
        self._engine, self._is_on, self._halves = engine, is_on, halves
        self._done: set[bool] = set()

    def renew(self) -> None:
        """There is another model, or the same one is trained anew."""
        self._done.clear()

    def expect(
        self, model: nn.Module, function: Callable[[nn.Module, Any], Any], given: object, *, gradients: bool
    ) -> Expected | None:
        """What torch makes of ``function(model, given)``; None where that is not asked any more.

        The generator and the model's buffers are afterwards what they were.
        """
        if not self._is_on or gradients in self._done:
            return None
        self._done.add(gradients)
        numbers = _numbers_of(model)
        versions = {name: parameter._version for name, parameter in model.named_parameters()}
        kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
        given = pytree.tree_map_only(Tensor, torch.clone, given)
        try:
            with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(gradients):
                returned = function(model, given)
                found = Expected([leaf for leaf in pytree.tree_leaves(returned) if isinstance(leaf, Tensor)])
                if gradients:
                    found.gradients = _gradients(found.outputs[0], model)
            found.buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        except Exception as error:
            error.add_note("trainwright: in torch's own run of the first batch, which engine_check=False leaves out.")
            raise
        finally:
            with torch.no_grad():
                for name, buffer in kept.items():
                    model.get_buffer(name).copy_(buffer)
        if moved := [name for name, value in _numbers_of(model).items() if numbers.get(name, value) != value]:
            logger.warning(
                "The forward pass changes %s, which is no tensor: on engine=%r it keeps the value of the first batch.",
                ", ".join(moved[:3]),
                self._engine,
            )
        for name, parameter in model.named_parameters():
            if parameter._version != versions[name]:
                self._refuse(f"the forward pass writes to the weight {name}")
        return found

    def compare(
        self,
        expected: Expected,
        outputs: Sequence[Tensor],
        gradients: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
    ) -> None:
        """Refuse to go on where the framework found something else."""
        if not all(bool(torch.isfinite(output).all()) for output in expected.outputs if output.is_floating_point()):
            return
        tensors = [*expected.outputs, *expected.gradients.values()]
        halves = self._halves or any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in tensors)
        most = _SHARE_IN_HALVES if halves else _SHARE
        whole = _norm(expected.gradients.values())
        name_of_output = "the loss" if expected.gradients else "what the model returns"
        pairs = [(name_of_output, a, b, 0.0) for a, b in zip(expected.outputs, outputs, strict=True)]
        for name, gradient in expected.gradients.items():
            pairs.append((f"the gradient of {name}", gradient, gradients.get(name, torch.zeros_like(gradient)), whole))
        pairs += [(f"the buffer {name}", buffer, buffers[name], 0.0) for name, buffer in expected.buffers.items()]
        for what, theirs, ours, floor in pairs:
            share = _distance(theirs, ours, _FLOOR * floor)
            if not share <= most:
                self._refuse(f"{what} differs by {share:.0%}")

    def _refuse(self, what: str) -> None:
        raise ValueError(
            f"engine={self._engine!r} does not compute what torch computes of the first batch: {what}. A graph holds "
            "torch's operations; what a model does beside them is lost: a backward pass of its own "
            "(torch.autograd.Function), hooks on tensors, weights that the forward pass changes (max_norm of an "
            "embedding), random numbers that are drawn and not used. Train with engine='torch', or set "
            "engine_check=False if that is what you want."
        )


def _numbers_of(model: nn.Module) -> dict[str, Any]:
    """Plain numbers and words that modules keep, by where they are."""
    return {
        f"{path}.{name}".strip("."): value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, bool | int | float | str)
    }


def _gradients(loss: Tensor, model: nn.Module) -> dict[str, Tensor]:
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not loss.requires_grad:
        return {}
    found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    return {name: gradient.to_dense() for name, gradient in zip(trained, found, strict=True) if gradient is not None}


def _norm(tensors: Any) -> float:
    return sum(float(tensor.double().norm()) ** 2 for tensor in tensors) ** 0.5


def _distance(theirs: Tensor, ours: Tensor, floor: float) -> float:
    """How far apart two tensors are, of the length of the first."""
    theirs, ours = theirs.detach().cpu().double(), ours.detach().cpu().double().reshape(theirs.shape)
    return float((theirs - ours).norm()) / (float(theirs.norm()) + floor + 1e-12)
