"""A copy of the model in every process: torch's DistributedDataParallel."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainwright.core.backend import Backend
from trainwright.engines.torch.backends import DistributedProcesses
from trainwright.engines.torch.module import Module, module_in
from trainwright.engines.torch.strategies.base import Strategy, StrategyContext

logger = logging.getLogger("trainwright")

_CHANGED = ("graph has changed", "finished reduction in the prior iteration", "marked as ready twice")


@dataclass(frozen=True)
class Replication:
    """Options of DistributedDataParallel, None where the strategy decides."""

    find_unused: bool | None = None
    static_graph: bool | None = None
    bucket_megabytes: int | None = None


class Replicated(DistributedDataParallel):
    """DistributedDataParallel through which the model's own attributes can still be read."""

    #: Whether the present micro-batch came by here: gradients of a model that is called by another way are not summed.
    was_called = False
    #: Calling it is calling the ``training_step`` of a Module.
    runs_training_step = True

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        self.was_called = True
        return super().forward(*inputs, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            called: Any = super().__getattr__("module")
            return getattr(called.module, name)


class Called(nn.Module):
    """A model as DistributedDataParallel is to call it; of a Module, its ``training_step``."""

    def __init__(self, module: nn.Module, device: torch.device, *, has_unused: bool) -> None:
        super().__init__()
        self.module = module
        # torch warns where it looks for unused parameters and finds none; where it does not look there may be none.
        self.unused = nn.Parameter(torch.zeros(1, device=device), requires_grad=has_unused)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        module = self.module
        return module.training_step(*inputs) if isinstance(module, Module) else module(*inputs, **kwargs)

    def _stored_model(self) -> nn.Module:
        return self.module


class OverlappedDDP(Strategy):
    """Gradients are summed while the last backward pass of a step is still running.

    Where that cannot be (``micro_batch="auto"``, whose steps may have to be done again; layers that are not in every
    step; optimization by hand) the plain :class:`Strategy` sums them afterwards, to the same numbers.
    """

    name = "ddp"
    sums_in_backward = True

    @classmethod
    def made_for(cls, context: StrategyContext) -> Strategy:
        args, backend = context.args, context.backend
        if backend.world_size == 1 or type(backend) is not DistributedProcesses:
            return Strategy()
        reason = _why_afterwards(context)
        if reason is not None:
            logger.info("Gradients are summed after a step's last backward pass, not during it: %s.", reason)
            return Strategy()
        options = Replication(
            find_unused=args.ddp_find_unused_parameters,
            static_graph=args.ddp_static_graph,
            bucket_megabytes=args.ddp_bucket_cap_mb,
        )
        return cls(options)

    def __init__(self, options: Replication) -> None:
        self.options = options
        self._wrapped: Replicated | None = None
        self._trained: list[bool] = []
        #: A static graph is recorded by the first backward pass, which must be one that sums.
        self._must_record = False
        self._recorded_in_this_step = False

    def spread(self, model: nn.Module, backend: Backend, called: nn.Module | None = None) -> nn.Module:
        inner = super().spread(model, backend, called)
        device = next(model.parameters()).device
        options, static = self.options, bool(self.options.static_graph)
        # Looking for unused parameters in each step costs a walk over the graph, and buys two things: a layer that is
        # left out once, after days, does not end the run; and buckets stay as they were at first, so that the first
        # step after a resume adds up in the same order as it would have without.
        find = not static if options.find_unused is None else options.find_unused
        known = inspect.signature(DistributedDataParallel.__init__).parameters
        # Its name since torch 2.13.
        more: dict[str, Any] = {
            "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False
        }
        if options.bucket_megabytes is not None:
            more["bucket_cap_mb"] = options.bucket_megabytes
        self._wrapped = Replicated(
            Called(module_in(inner) or inner, device, has_unused=find or static),
            device_ids=None if device.type == "cpu" else [device],
            # Buffers that steps change are shared by the engine; the weights just were.
            init_sync=False,
            gradient_as_bucket_view=True,
            find_unused_parameters=find,
            static_graph=static,
            **more,
        )
        # It averages; each process has weighted its gradient by its share of the targets.
        self.gradient_factor = float(backend.world_size)
        self._must_record = static
        self._model = model
        self._trained = [parameter.requires_grad for parameter in model.parameters()]
        return self._wrapped

    @contextlib.contextmanager
    def micro_batch(self, *, sync: bool) -> Iterator[None]:
        assert self._wrapped is not None
        self._wrapped.was_called = False
        sync = sync and self._trains_the_same() and not self._recorded_in_this_step
        if self._must_record:
            self._must_record = False
            # What comes after it in this step is summed afterwards; the mean of what all have is what they have.
            sync = self._recorded_in_this_step = True
        try:
            with contextlib.nullcontext() if sync else self._wrapped.no_sync():
                yield
        except RuntimeError as error:
            if any(part in str(error) for part in _CHANGED):
                error.add_note(
                    "trainwright: other layers take part in this step than in the first. Set "
                    "ddp_find_unused_parameters=True, which looks for them in every step."
                )
            raise

    def _trains_the_same(self) -> bool:
        """Whether nobody has frozen, or freed, parameters since DistributedDataParallel looked at them."""
        return self._trained == [parameter.requires_grad for parameter in self._model.parameters()]

    def reduce(self, backend: Backend, parameters: Sequence[Tensor], extra: Sequence[Tensor]) -> None:
        assert self._wrapped is not None
        missed = not self._wrapped.was_called or self._recorded_in_this_step or not self._trains_the_same()
        self._recorded_in_this_step = False
        wanted = dict.fromkeys([*self._model.parameters(), *parameters]) if missed else extra
        left = [parameter for parameter in wanted if parameter.requires_grad]
        if left:
            backend.reduce_gradients(left)
            gradients = [parameter.grad for parameter in left if parameter.grad is not None]
            torch._foreach_div_(gradients, self.gradient_factor)


def may_overlap(model: nn.Module) -> str | None:
    """None, or why a model's gradients are better summed after the backward pass."""
    for module in model.modules():
        if getattr(module, "sparse", False) and isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            return "it has sparse gradients"
    config = getattr(model, "config", None)
    for name in ("layerdrop", "encoder_layerdrop", "decoder_layerdrop"):
        if getattr(config, name, 0):
            return f"{name} leaves out layers at random"
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        if getattr(config, name, 0):
            return "which experts take part depends on the samples"
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return "it has no parameter to train"
    return None


def on_one_device(model: nn.Module) -> bool:
    """Whether DistributedDataParallel can take the model: it wants all parameters in one place."""
    return len({parameter.device for parameter in model.parameters()} - {torch.device("meta")}) == 1


def _why_afterwards(context: StrategyContext) -> str | None:
    """None, or why DistributedDataParallel cannot sum gradients while a backward pass runs."""
    if context.optimizes_by_hand:
        return "the Module optimizes by hand"
    if context.args.micro_batch == "auto":
        return 'micro_batch="auto" may have to do a step again'
    for modifier in context.modifiers:
        if modifier.changes_graph or modifier.changes_structure or modifier.needs_whole_tensors:
            return f"the recipe's {type(modifier).__name__} changes what takes part in a step"
    if context.model is None:
        return None
    if not on_one_device(context.model):
        return "the model is on several devices"
    return may_overlap(context.model)
