"""What the engine asks of a strategy, and the one for a model that is not spread at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainwright.config.arguments import TrainingArguments
from trainwright.core.backend import Backend
from trainwright.core.layout import Layout
from trainwright.core.modifier import Modifier
from trainwright.engines.torch.clipping import clip_on_cpu
from trainwright.engines.torch.one_group import step_as_one
from trainwright.engines.torch.precision import Precision

#: One for all: making a context from a generator takes 5 us.
_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()


@dataclass(frozen=True)
class StrategyContext:
    """The training that a strategy is made for."""

    args: TrainingArguments
    backend: Backend
    #: None until ``fit`` is given one.
    model: nn.Module | None
    modifiers: Sequence[Modifier] = ()
    #: The Module steps its optimizers itself.
    optimizes_by_hand: bool = False
    #: Checkpoints go, whole, to a checkpointer of the user's.
    has_checkpointer: bool = False


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
    #: Clips, looks for NaN and updates in one; its parameters' ``.grad`` say nothing.
    updates_by_itself = False
    #: Parameters hold their values only while their layer runs: between passes they are empty.
    empties_parameters = False
    #: The model is in half precision itself and casts what it is given: nothing is left for autocast to do.
    casts_by_itself = False
    #: Brings the model to the device, part by part: whole it may not fit.
    places_model = False
    #: The first process writes checkpoints, but all must come to put weights and optimizer state together.
    gathers_to_save = False

    @classmethod
    def made_for(cls, context: StrategyContext) -> Strategy:
        """The strategy for a training; whatever cannot go with it is refused here, before any work."""
        return cls.from_arguments(context.args)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Self:
        """The same where nothing but settings counts."""
        return cls()

    @property
    def layout(self) -> Layout:
        """Who holds which weights, and who writes them."""
        return Layout(
            name=self.name,
            in_parts=self.is_sharded,
            gathered_to_save=self.gathers_to_save,
            empty_between_passes=self.empties_parameters,
            copies=self.copies,
        )

    def precision(self, args: TrainingArguments) -> Precision:
        """What a model computes in that is spread like this."""
        return Precision(args, args.device, casts=not self.casts_by_itself)

    def spread(self, model: nn.Module, backend: Backend, called: nn.Module | None = None) -> nn.Module:
        """Take the model, all processes starting with the weights of the first; returns it as it is to be called.

        ``called`` is the model as it would be called without a strategy: compiled, say.
        """
        backend.share([*model.parameters(), *model.buffers()])
        return model if called is None else called

    def bring(self, model: nn.Module, device: torch.device) -> None:
        """Before the first training: to ``device``, where the Trainer has left that to the strategy."""

    def take_optimizer(self, model: nn.Module, optimizer: Optimizer) -> nn.Module:
        """Once there is an optimizer: the model, as :meth:`spread` returned it, as it is to be called."""
        return model

    def make_schedule(self, optimizer: Optimizer, total_steps: int) -> Any:
        """A learning-rate schedule that the strategy's own configuration names, or None."""
        return None

    def micro_batch(self, *, sync: bool) -> AbstractContextManager[None]:
        """Around forward and backward of one micro-batch; ``sync`` for the last of a step."""
        return _NOTHING

    def backward(self, loss: Tensor) -> None:
        """Gradients of ``loss``."""
        loss.backward()

    def drop_gradients(self, parameters: Sequence[Tensor]) -> None:
        """No process had a target: there is no gradient, not one of zeros, by which weights would still decay."""
        for parameter in parameters:
            parameter.grad = None

    def update(self, optimizer: Any) -> float | None:
        """Step the optimizer; returns the norm of the gradients where it was not known before, infinite if nothing
        was changed."""
        step_as_one(optimizer)
        return None

    @contextlib.contextmanager
    def whole(self, model: nn.Module, optimizer: Any = None, *, keep: bool) -> Iterator[None]:
        """Within it ``model`` and ``optimizer`` hold everything in single precision, in processes that ``keep`` it.

        Of a strategy that gathers, every process must come by.
        """
        yield

    @contextlib.contextmanager
    def rewritten(self, model: nn.Module, optimizer: Any = None) -> Iterator[None]:
        """The same in every process; what is written to them within it is what training goes on with."""
        yield

    @contextlib.contextmanager
    def called_in_parts(self) -> Iterator[None]:
        """Around calls of the model's inner layers without the model itself, as ``generate`` makes them."""
        yield

    def settle(self) -> None:
        """After passes that no backward pass follows: parameters as they are between steps."""

    def recover(self) -> None:
        """Put the model back in order after a pass that was broken off."""

    def reduce(self, backend: Backend, parameters: Sequence[Tensor], extra: Sequence[Tensor]) -> None:
        """After a step's last backward pass: gradients of all processes, where they are not summed already.

        ``extra`` are those of ``parameters`` that are not the model's.
        """
        backend.reduce_gradients(parameters)

    def clip(self, parameters: Sequence[Tensor], most: float) -> Tensor:
        """Scale gradients so that their norm over the whole model is at most ``most``; returns what it was."""
        norm = clip_on_cpu(parameters, most)
        if norm is not None:
            return norm
        try:
            return nn.utils.clip_grad_norm_(parameters, most)
        except NotImplementedError:
            if not any(p.grad is not None and p.grad.is_sparse for p in parameters):
                raise
            # torch has no norm of sparse gradients; nothing has been scaled yet.
            return self._clip_sparse(parameters, most)

    def _clip_sparse(self, parameters: Sequence[Tensor], most: float) -> Tensor:
        parts = []
        for parameter in parameters:
            if parameter.grad is not None:
                if parameter.grad.is_sparse:
                    # Only so are its values its own.
                    parameter.grad = parameter.grad.coalesce()
                parts.append(dense_part(parameter.grad))
        norm = self.norm(parts)
        share = (most / (norm + 1e-6)).clamp(max=1.0)
        for part in parts:
            part.mul_(share.to(part.device))
        return norm

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm over the whole model."""
        return nn.utils.get_total_norm(gradients)


def dense_part(gradient: Tensor) -> Tensor:
    """The values of a gradient; a sparse one (of an embedding) has zeros besides."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


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
