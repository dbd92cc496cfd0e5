"""Forward, backward and update of one step, on tensors that have shapes but no numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.utils._pytree import tree_map

from trainwright.engines.torch.rehearsal.gpu_kernels import GpuKernels
from trainwright.engines.torch.rehearsal.ledger import Ledger

Loss = Callable[[nn.Module, Any], Tensor]


@dataclass
class Rehearsal:
    """How one step is to be tried."""

    #: Any model: it is not touched, and needs no numbers (``torch.device("meta")``).
    model: nn.Module
    #: A micro-batch of its inputs.
    batch: Any
    #: The loss of a model and a batch.
    loss: Loss
    #: Format of autocast, if there is any.
    half: torch.dtype | None = None
    #: Changes the copy that is tried: recomputation, say.
    change: Callable[[nn.Module], None] | None = None
    #: Micro-batches of a step: from the second on there are gradients of the first.
    pieces: int = 1
    #: Groups of parameters whose gradients are summed over ``share`` processes and kept in parts as soon as all of a
    #: group are there; weights are counted as ``whole_weights``, in half precision. None: both are whole.
    groups: Callable[[nn.Module], list[list[nn.Parameter]]] | None = None
    share: int = 1
    #: Build the optimizer of the copy.
    optimizer: Callable[[nn.Module], Any] | None = None


@dataclass
class Found:
    """Bytes: ``at_peak`` of forward and backward passes by kind; ``update`` what the optimizer needs for a while."""

    at_peak: dict[str, int] = field(default_factory=dict)
    state: int = 0
    update: int = 0
    #: Why the optimizer could not be tried.
    untried: str | None = None


def rehearse(plan: Rehearsal) -> Found:
    """Run a step and say what it held. A model whose forward pass depends on the numbers in it is refused."""
    with FakeTensorMode(allow_non_fake_inputs=True), Ledger() as ledger:
        with ledger.entering("weights" if plan.groups is None else "whole_weights"):
            model = without_numbers(plan.model, keep_dtype=plan.groups is None, half=plan.half)
        model.train()
        if plan.change is not None:
            plan.change(model)
        found = Found()
        optimizer = _try_optimizer(plan, model, ledger, found) if plan.groups is None else None
        for buffer in model.buffers():
            ledger.assign(buffer, "weights")
        parts = _Parts(plan, model, ledger)
        batch = _batch_without_numbers(plan, ledger)
        kernels = GpuKernels(ledger, plan.half)
        ledger.forget_peak()
        for piece in range(min(plan.pieces, 2)):
            parts.sums = piece == min(plan.pieces, 2) - 1
            _run(plan, model, batch, ledger, kernels)
        parts.finish()
        found.at_peak = {kind: size for kind, size in ledger.at_peak.items() if size}
        del optimizer
    return found


def _run(plan: Rehearsal, model: nn.Module, batch: object, ledger: Ledger, kernels: GpuKernels) -> None:
    try:
        with kernels:
            kernels.kept = {}
            loss = plan.loss(model, batch)
            # Blocks that are run again in the backward pass cast their weights again, each for itself.
            kernels.kept = None
            with ledger.entering("temporary"):
                kernels.backward(loss.mean() if loss.ndim else loss)
    except (RuntimeError, NotImplementedError) as error:
        needs_numbers = isinstance(error, DynamicOutputShapeException) or "data-dependent" in str(error).lower()
        reason = "its forward pass depends on the numbers in its inputs" if needs_numbers else str(error)
        raise ValueError(
            f"{type(model).__name__} could not be tried without numbers ({reason}): measure its memory with a few "
            "steps on a GPU instead."
        ) from error


def without_numbers(model: nn.Module, *, keep_dtype: bool = True, half: torch.dtype | None = None) -> nn.Module:
    """A copy whose tensors have no memory; floating-point parameters in ``half`` unless ``keep_dtype``."""
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        dtype = tensor.dtype
        if isinstance(tensor, nn.Parameter) and not keep_dtype and half is not None and dtype.is_floating_point:
            dtype = half
        empty: Tensor = torch.empty(tensor.shape, dtype=dtype)
        if isinstance(tensor, nn.Parameter):
            empty = nn.Parameter(empty, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = empty
    return copy.deepcopy(model, memo)


def _batch_without_numbers(plan: Rehearsal, ledger: Ledger) -> Any:
    def empty(value: object) -> Any:
        if not isinstance(value, Tensor):
            return value
        lowered = plan.groups is not None and plan.half is not None and value.is_floating_point()
        return torch.empty(value.shape, dtype=plan.half if lowered else value.dtype)

    with ledger.entering("batch"):
        return tree_map(empty, plan.batch)


def _try_optimizer(plan: Rehearsal, model: nn.Module, ledger: Ledger, found: Found) -> Any:
    """One update, to see what state an optimizer keeps, and what it needs while it works."""
    if plan.optimizer is None:
        return None
    before = ledger.now
    try:
        optimizer = plan.optimizer(model)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        with ledger.entering("optimizer"):
            for parameter in trained:
                parameter.grad = torch.empty_like(parameter)
            optimizer.step()
            for parameter in trained:
                parameter.grad = None
            found.state = ledger.now - before
            for parameter in trained:
                parameter.grad = torch.empty_like(parameter)
            ledger.forget_peak()
            held = ledger.now
            optimizer.step()
            found.update = ledger.peak - held
        for parameter in trained:
            parameter.grad = None
        return optimizer
    except Exception as error:  # Optimizers of other packages have kernels that only run on a GPU.
        found.untried = f"{type(error).__name__}: {error}"
        for parameter in model.parameters():
            parameter.grad = None
        return None


class _Parts:
    """What becomes of gradients: they stay, or each group's is summed over processes and a part of it kept."""

    def __init__(self, plan: Rehearsal, model: nn.Module, ledger: Ledger) -> None:
        self.sums = True
        self._ledger, self._share = ledger, plan.share
        self._kept: list[Tensor] = []
        self._whole: dict[int, Tensor] = {}
        self._exchanged: Tensor | None = None
        self._handles: list[Any] = []
        if plan.groups is None:
            for parameter in model.parameters():
                if parameter.requires_grad:
                    self._handles.append(parameter.register_post_accumulate_grad_hook(self._stays))
            return
        for group in plan.groups(model):
            self._watch([parameter for parameter in group if parameter.requires_grad])

    def _stays(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self._ledger.assign(parameter.grad, "gradients")

    def _watch(self, group: Sequence[nn.Parameter]) -> None:
        there: set[int] = set()

        def arrived(parameter: Tensor) -> None:
            there.add(id(parameter))
            if len(there) == len(group):
                there.clear()
                self._exchange(group)

        for parameter in group:
            self._handles.append(parameter.register_post_accumulate_grad_hook(arrived))

    def _exchange(self, group: Sequence[nn.Parameter]) -> None:
        numbers = sum(parameter.numel() for parameter in group)
        if not self.sums:
            with self._ledger.entering("gradients"):
                self._whole[id(group)] = torch.empty(numbers, dtype=torch.float32)
        else:
            with self._ledger.entering("communication"):
                # That of the group before is held until this one's is on its way.
                self._exchanged = torch.empty(numbers, dtype=torch.float32)
                if self._share == 1:
                    # Alone, FSDP scales into a copy.
                    torch.empty_like(self._exchanged)
            with self._ledger.entering("gradients"):
                self._kept.append(torch.empty(-(-numbers // self._share), dtype=torch.float32))
            self._whole.pop(id(group), None)
        for parameter in group:
            parameter.grad = None

    def finish(self) -> None:
        for handle in self._handles:
            handle.remove()
