"""Captured computations, compiled for a framework: one for each shape of batch, kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from trainwright.engines.graph.capture import Captured, capture
from trainwright.engines.graph.framework import ArrayFunction, Framework
from trainwright.engines.graph.recompute import recomputed

logger = logging.getLogger("trainwright")
#: Shapes after which somebody should hear that each of them is compiled.
_MANY = 8


class Computation(Protocol):
    """A function of weights and inputs that a framework can run; ``Captured`` is one."""

    trained: list[str]
    fixed: list[str]
    constants: list[Tensor]
    inputs: list[int]
    random: list[Callable[[], Tensor]]
    changed: list[str]

    def run(self, operations: Any, arguments: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Outputs, and new values of ``changed``."""
        ...

    def rebuilt(self, outputs: Sequence[Any]) -> Any:
        """Flat outputs in the structure that the computation returned them in."""
        ...


@dataclass
class Program:
    """A computation, compiled, with its constants where they are needed."""

    computation: Computation
    function: ArrayFunction
    constants: list[Any]


#: Captures ``function(model, given)``.
Capture = Callable[[Any, Callable[..., Any], Any], Computation]


class Programs:
    """Compiles what it is asked for when it is first asked for it."""

    def __init__(self, framework: Framework, capture: Capture = capture, *, recompute: bool = False) -> None:
        self._framework = framework
        self._capture = capture
        self._recompute = recompute
        self._model: nn.Module | None = None
        self._known: dict[Any, Program] = {}

    def __len__(self) -> int:
        return len(self._known)

    def find(
        self, model: nn.Module, function: Callable[[nn.Module, Any], Any], given: object, *, gradients: bool
    ) -> Program:
        """The program of ``function(model, given)`` for batches of the shapes of ``given``."""
        if model is not self._model:
            # Another model's graphs are not this one's, whatever its batches look like.
            self._model = model
            self._known.clear()
        leaves, structure = pytree.tree_flatten(given)
        trained = tuple(parameter.requires_grad for parameter in model.parameters())
        key = (gradients, model.training, trained, str(structure), *map(_shape, leaves))
        if key not in self._known:
            self._known[key] = self._compile(model, function, given, gradients=gradients)
            if len(self._known) == _MANY:
                logger.warning(
                    "%d shapes of batches have been compiled for %s, and every new one takes time: pad to a few "
                    "lengths, and drop the last, smaller batch (dataloader_drop_last).",
                    _MANY,
                    self._framework.name,
                )
        return self._known[key]

    def _compile(
        self, model: nn.Module, function: Callable[[nn.Module, Any], Any], given: object, *, gradients: bool
    ) -> Program:
        # When a shape is met first must not decide which random numbers come later.
        with torch.random.fork_rng(devices=[]):
            computation = self._capture(model, function, given)
        self._refuse_missing(computation)
        constants = [self._framework.array(constant) for constant in computation.constants]
        if gradients and self._recompute and isinstance(computation, Captured):
            return Program(computation, recomputed(computation, self._framework), constants)
        outputs_of = _flat(computation, self._framework, with_weight=gradients)
        if gradients:
            outputs_of = self._framework.with_gradients(outputs_of, len(computation.trained))
        return Program(computation, self._framework.compile(outputs_of), constants)

    def _refuse_missing(self, computation: Computation) -> None:
        if not isinstance(computation, Captured):
            return
        lacking = computation.missing(self._framework.operations)
        if lacking:
            uses = "; ".join(f"{name} in {', '.join(layers[:3])}" for name, layers in lacking.items())
            raise ValueError(
                f"engine={self._framework.name!r} lacks operations that this model uses: {uses}. Add each to "
                f"trainwright.engines.{self._framework.name}.operations.OPERATIONS as a function of arrays "
                "(docs/engines.md shows how), or train with engine='torch'."
            )


def _flat(computation: Computation, framework: Framework, *, with_weight: bool) -> ArrayFunction:
    """The computation from flat arrays to flat arrays; its loss times a weight, which is the last argument."""

    def run(*arrays: Any) -> tuple[Any, ...]:
        arguments = arrays[:-1] if with_weight else arrays
        outputs, changed = computation.run(framework.operations, arguments)
        if with_weight:
            outputs = [outputs[0] * arrays[-1], *outputs[1:]]
        return (*outputs, *changed)

    return run


def _shape(leaf: object) -> Any:
    return (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else leaf
