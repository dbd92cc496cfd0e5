"""Logits that are not computed until somebody looks at them.

A language model's last layer puts out a number for each token and each word of the vocabulary: often the largest tensor
of a training, and the loss is all that is wanted of it. :class:`Logits` stands in its place. ``cross_entropy`` takes
the loss and the gradients from it some tokens at a time; whatever else looks at it finds the real numbers, and
gradients flow back through it as through any tensor.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from trainwright.engines.torch.acceleration.chunked_loss import linear_cross_entropy


class OutputLayer(NamedTuple):
    """A linear layer, and the format it computes in."""

    weight: Tensor
    bias: Tensor | None
    dtype: torch.dtype


class Logits(Tensor):
    """The output of a linear layer as a tensor whose numbers nobody has needed yet."""

    states: Tensor
    layer: OutputLayer
    #: The numbers, once somebody looked.
    made: Tensor | None
    #: How many tensors are views of the same numbers; one list for all of them.
    views: list[int]
    #: Somebody wants to hear of their gradient.
    is_watched: bool
    #: How often states, weight and bias had been changed in place when these logits were put out.
    versions: tuple[int, ...]

    @staticmethod
    def __new__(cls, states: Tensor, layer: OutputLayer, dtype: torch.dtype) -> Logits:
        shape = (*states.shape[:-1], layer.weight.shape[0])
        # The dispatch keys below autograd find the numbers in ``made``.
        return Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=states.device)  # type: ignore[attr-defined]

    @classmethod
    def of(cls, states: Tensor, layer: OutputLayer, dtype: torch.dtype | None = None) -> Logits:
        """Logits of hidden ``states``, read as ``dtype``; differentiable in the states and in the layer."""
        logits: Logits = _NotMade.apply(states, layer.weight, layer.bias, layer.dtype, dtype or layer.dtype)
        logits._begin(states, layer)
        _held[id(logits)] = logits
        return logits

    def _begin(self, states: Tensor, layer: OutputLayer) -> None:
        self.states, self.layer, self.made, self.views, self.is_watched = states, layer, None, [1], False
        self.versions = _versions(states, layer)

    def view_of(self, states: Tensor) -> Logits:
        """Logits of some of the same states, in another shape perhaps."""
        return self.as_view(Logits.of(states, self.layer, self.dtype))

    def as_view(self, found: Logits) -> Logits:
        """``found``, made of the same states."""
        found.views, found.versions = self.views, self.versions
        self.views[0] += 1
        return found

    @property
    def is_made(self) -> bool:
        """Whether somebody looked at the numbers, so that nothing is saved."""
        return self.made is not None

    def numbers(self) -> Tensor:
        """The logits themselves, without a graph."""
        if self.made is None:
            self.refuse_if_too_late()
            with torch.no_grad(), torch.autocast(self.states.device.type, enabled=False):
                weight, bias, dtype = self.layer
                bias = None if bias is None else bias.detach().to(dtype)
                self.made = F.linear(self.states.detach().to(dtype), weight.detach().to(dtype), bias).to(self.dtype)
        return self.made

    def refuse_if_too_late(self) -> None:
        if _versions(self.states, self.layer) != self.versions:
            raise RuntimeError(
                "These logits were not computed when their layer was called, and its weights have changed since. "
                'Look at them before the optimizer steps, or leave out this acceleration: acceleration="off".'
            )

    def refuse_change(self, func: Any) -> None:
        """A view that was taken before would not see it."""
        if self.views[0] > 1:
            raise RuntimeError(
                f"{getattr(func, '__name__', func)} changes logits in place of which there are views. Write "
                "`logits = logits / 2`, say, instead of `logits /= 2`, or leave out this acceleration: "
                'acceleration="off".'
            )

    def plain(self) -> Tensor:
        """The logits as an ordinary tensor; if they require a gradient, in a graph of its own."""
        numbers = self.numbers()
        return numbers.detach().requires_grad_() + 0 if self.requires_grad else numbers

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        still = _STILL_NOT_MADE.get(func)
        first = args[0] if args and isinstance(args[0], Logits) else None
        if first is not None and func in _WATCHING:
            first.is_watched = True
        if first is not None and func is Tensor.__setitem__:
            first.refuse_change(func)
        if still is not None and first is not None and not first.is_made and not first.is_watched:
            answer = still(*args, **kwargs)
            if answer is not None:
                return answer
        if func in _NOT_OF_A_SUBCLASS and first is not None:
            args = (first.plain(), *args[1:])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Autograd is above this: its graph has the operation already, only the numbers are wanted."""
        if func._schema.is_mutable and isinstance(args[0], Logits):
            args[0].refuse_change(func)
        args, kwargs = torch.utils._pytree.tree_map_only(Logits, Logits.numbers, (args, kwargs or {}))
        return func(*args, **kwargs)


#: Logits that somebody has, by identity: most are gone when their loss is known.
_held: weakref.WeakValueDictionary[int, Logits] = weakref.WeakValueDictionary()


def make_what_is_held() -> None:
    """Make the logits that somebody keeps for later, as long as they can be made."""
    for logits in list(_held.values()):
        if not logits.is_made and _versions(logits.states, logits.layer) == logits.versions:
            logits.numbers()


def _versions(states: Tensor, layer: OutputLayer) -> tuple[int, ...]:
    return states._version, layer.weight._version, 0 if layer.bias is None else layer.bias._version


class _NotMade(torch.autograd.Function):
    """From hidden states to :class:`Logits`; backward is that of a linear layer."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, computed_in: torch.dtype, dtype: torch.dtype
    ) -> Logits:
        ctx.save_for_backward(states, weight)
        ctx.computed_in, ctx.bias_dtype = computed_in, None if bias is None else bias.dtype
        logits = Logits(states, OutputLayer(weight, bias, computed_in), dtype)
        # Its owner begins again, with the graph: an operation below autograd may come first.
        logits._begin(states, OutputLayer(weight, bias, computed_in))
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        states, weight = ctx.saved_tensors
        gradient = gradient.to(ctx.computed_in)
        rows = gradient.reshape(-1, gradient.shape[-1])
        of_states = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_states = (gradient @ weight.to(ctx.computed_in)).to(states.dtype)
        if ctx.needs_input_grad[1]:
            of_weight = (rows.T @ states.reshape(-1, states.shape[-1]).to(ctx.computed_in)).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            of_bias = rows.sum(0).to(ctx.bias_dtype)
        return of_states, of_weight, of_bias, None, None


# ---- what may be done to logits without looking at them; None where the numbers are needed after all


def _as_dtype(logits: Logits, dtype: torch.dtype) -> Logits | None:
    if not dtype.is_floating_point:
        return None
    if dtype == logits.dtype:
        return logits
    found = Logits.of(logits.states, logits.layer, dtype)
    found.versions = logits.versions
    return found


def _float(logits: Logits) -> Logits | None:
    return _as_dtype(logits, torch.float32)


def _to(logits: Logits, *args: Any, **kwargs: Any) -> Logits | None:
    wanted = kwargs.get("dtype", args[0] if args else None)
    rest = set(kwargs) - {"dtype"}
    if not isinstance(wanted, torch.dtype) or len(args) > 1 or rest:
        return logits if not rest and len(args) == 1 and _is_device_of(logits, wanted) else None
    return _as_dtype(logits, wanted)


def _is_device_of(logits: Logits, wanted: object) -> bool:
    return isinstance(wanted, (str, torch.device)) and torch.device(wanted) == logits.device


def _same(logits: Logits, **kwargs: Any) -> Logits | None:
    return None if kwargs else logits


def _detached(logits: Logits) -> Logits:
    weight, bias, dtype = logits.layer
    layer = OutputLayer(weight.detach(), None if bias is None else bias.detach(), dtype)
    return logits.as_view(Logits.of(logits.states.detach(), layer, logits.dtype))


def _reshaped(logits: Logits, *shape: Any, **kwargs: Any) -> Logits | None:
    if kwargs or not shape or not all(isinstance(size, (int, tuple, list, torch.Size)) for size in shape):
        return None
    return _as_shape(logits, torch.empty(logits.shape, device="meta").reshape(*shape).shape)


def _flattened(logits: Logits, start_dim: int = 0, end_dim: int = -1) -> Logits | None:
    return _as_shape(logits, torch.empty(logits.shape, device="meta").flatten(start_dim, end_dim).shape)


def _as_shape(logits: Logits, shape: torch.Size) -> Logits | None:
    """Rows stay rows as long as the vocabulary is the last dimension."""
    if not shape or shape[-1] != logits.shape[-1]:
        return None
    states = logits.states.reshape(*shape[:-1], logits.states.shape[-1])
    return logits.view_of(states)


def _chosen(logits: Logits, key: Any) -> Logits | None:
    """Some of the rows, each of them whole."""
    parts = key if isinstance(key, tuple) else (key,)
    if not all(isinstance(part, (int, slice)) or part is Ellipsis for part in parts):
        return None
    dimensions = [part for part in parts if part is not Ellipsis]
    reaches_words = len(dimensions) == logits.ndim or (parts[-1] is not Ellipsis and Ellipsis in parts)
    if reaches_words and dimensions[-1] != slice(None):
        return None
    return logits.view_of(logits.states[key])


def _cross_entropy(
    logits: Logits,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor | None:
    plain = weight is None and size_average is None and reduce is None and label_smoothing == 0.0
    fits = logits.ndim == 2 and target.ndim == 1 and not target.is_floating_point()
    if not plain or not fits or reduction not in ("mean", "sum"):
        return None
    logits.refuse_if_too_late()
    total, count = linear_cross_entropy(logits.states, *logits.layer, target, ignore_index)
    if total.requires_grad:
        # The weights change next: who still has logits then may look at them later.
        total.register_hook(lambda gradient: make_what_is_held())
    loss = total if reduction == "sum" else total / count
    # Autocast takes losses in single precision.
    return loss if torch.is_autocast_enabled(logits.device.type) else loss.to(logits.dtype)


#: From then on the logits have to be in the graph.
_WATCHING = frozenset((Tensor.register_hook, Tensor.retain_grad, Tensor.register_post_accumulate_grad_hook))

_STILL_NOT_MADE: dict[Any, Callable[..., Any]] = {
    F.cross_entropy: _cross_entropy,
    Tensor.float: _float,
    Tensor.to: _to,
    Tensor.contiguous: _same,
    Tensor.detach: _detached,
    Tensor.view: _reshaped,
    Tensor.reshape: _reshaped,
    torch.reshape: _reshaped,
    Tensor.flatten: _flattened,
    torch.flatten: _flattened,
    Tensor.__getitem__: _chosen,
}


#: What torch does with memory of a tensor's own only.
_NOT_OF_A_SUBCLASS = frozenset(
    (
        Tensor.numpy,
        Tensor.__array__,
        Tensor.tolist,
        Tensor.data_ptr,
        Tensor.untyped_storage,
        Tensor.__deepcopy__,
        Tensor.__reduce_ex__,
    )
)


def output_layer(model: nn.Module) -> nn.Linear | None:
    """The plain linear layer that a transformers model says makes its logits."""
    find = getattr(model, "get_output_embeddings", None)
    found = find() if callable(find) else None
    return found if type(found) is nn.Linear else None
