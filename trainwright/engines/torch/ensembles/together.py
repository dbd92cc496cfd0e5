"""Passes of all members as one, by ``torch.func.vmap``; proved on the first batch against one after the other."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.dropout import _DropoutNd

from trainwright.core.dtensors import is_dtensor
from trainwright.engines.torch.acceleration.undisturbed import undisturbed
from trainwright.engines.torch.memory import is_out_of_memory

#: A member, what it is called with, and its weights of samples -> its loss and its logits.
OneMember = Callable[..., tuple[Tensor, Tensor]]
#: How many roundings a result may be from the same result computed in another order.
_ROUNDINGS = 1000


def one_by_one(members: Sequence[nn.Module], one: OneMember, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Losses and logits of members, each in its turn."""
    found = [one(member, None if weights is None else weights[place]) for place, member in enumerate(members)]
    return torch.stack([loss for loss, _ in found]), torch.stack([logits for _, logits in found])


def together(members: Sequence[nn.Module], one: OneMember, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same in one pass: the weights of all members are stacked, and each operation is done for all at once.

    Gradients go through the stack to each member's own parameters. Buffers, such as the statistics of batch
    normalization, are written back.
    """
    base = members[0]
    parameters = _stacked(members, "_parameters")
    buffers = _stacked(members, "_buffers")

    def called(own: dict[str, Tensor], kept: dict[str, Tensor], weight: Tensor | None) -> tuple[Tensor, Tensor]:
        return one(_Called(base, {**own, **kept}), weight)

    places = (0, 0, None if weights is None else 0)
    losses, logits = vmap(called, in_dims=places, randomness="different")(parameters, buffers, weights)
    if buffers:
        # All of them: kernels that write statistics do not count it as a write.
        _write_back(members, buffers)
    return losses, logits


class _Called:
    """A network that is called with other weights than its own."""

    def __init__(self, network: nn.Module, weights: dict[str, Tensor]) -> None:
        self._network, self._weights = network, weights

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Tied weights come under each of their names; the gradients of both reach the one parameter.
        return functional_call(self._network, self._weights, args, kwargs, tie_weights=False)


def _named(network: nn.Module, kind: str, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Names and tensors; ``named_parameters`` takes ten times as long, and this is done in every step."""
    for name, tensor in getattr(network, kind).items():
        if tensor is not None:
            yield prefix + name, tensor
    for name, inner in network._modules.items():
        if inner is not None:
            yield from _named(inner, kind, f"{prefix}{name}.")


def _stacked(members: Sequence[nn.Module], kind: str) -> dict[str, Tensor]:
    found = [list(_named(member, kind)) for member in members]
    return {names[0][0]: torch.stack([tensor for _, tensor in names]) for names in zip(*found, strict=True)}


@torch.no_grad()
def _write_back(members: Sequence[nn.Module], written: dict[str, Tensor]) -> None:
    for place, member in enumerate(members):
        own = [tensor for _, tensor in _named(member, "_buffers")]
        torch._foreach_copy_(own, [tensor[place] for tensor in written.values()])


def why_in_turn(members: Sequence[nn.Module], one: OneMember, weights: Tensor | None) -> str | None:
    """Why members have to be computed in turn; None where together they give the same results and gradients.

    Tried on what the first step is about to compute; nothing is changed by it.
    """
    if any(is_dtensor(parameter) for parameter in itertools.chain(*(member.parameters() for member in members))):
        return "their weights are spread over several devices"
    if len({(type(member), repr(member)) for member in members}) > 1:
        return "they are not built alike"
    shapes = [[(name, tensor.shape, tensor.dtype) for name, tensor in _all_named(member)] for member in members]
    if any(shape != shapes[0] for shape in shapes):
        return "their weights have different shapes"
    try:
        with _all_undisturbed(members):
            together(members, one, weights)
        return _first_difference(members, one, weights)
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        if is_out_of_memory(error):
            # A smaller batch may do; nothing is known of the model yet.
            raise
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return f"torch.func cannot compute this model for all at once ({line[:120]})"


def _all_named(member: nn.Module) -> list[tuple[str, Tensor]]:
    return [*_named(member, "_parameters"), *_named(member, "_buffers")]


def _all_undisturbed(members: Sequence[nn.Module]) -> contextlib.AbstractContextManager[None]:
    return undisturbed(nn.ModuleList(members))


def _first_difference(members: Sequence[nn.Module], one: OneMember, weights: Tensor | None) -> str | None:
    """What is different between both ways; random numbers are left out, since they are drawn in another order."""
    with _all_undisturbed(members):
        for member in members:
            for module in member.modules():
                if isinstance(module, _DropoutNd):
                    module.eval()
        if _draws(members, one, weights):
            for member in members:
                member.eval()
        expected, found = (_results(members, one, weights, way) for way in (one_by_one, together))
    for name, value in expected.items():
        if not _is_near(found[name], value):
            return f"together, {name} would be different"
    return None


def _draws(members: Sequence[nn.Module], one: OneMember, weights: Tensor | None) -> bool:
    """Whether a pass gives something else each time."""
    found = []
    for seed in (1, 2):
        with _all_undisturbed(members), torch.no_grad():
            torch.manual_seed(seed)
            found.append(one_by_one(members, one, weights)[1])
    return not torch.equal(*found)


def _results(
    members: Sequence[nn.Module], one: OneMember, weights: Tensor | None, way: Callable[..., tuple[Tensor, Tensor]]
) -> dict[str, Tensor]:
    """Losses, logits, gradients, and buffers after the pass."""
    trained = {
        f"the gradient of {place}.{name}": parameter
        for place, member in enumerate(members)
        for name, parameter in member.named_parameters()
        if parameter.requires_grad
    }
    with _all_undisturbed(members):
        losses, logits = way(members, one, weights)
        found = {"a loss": losses.detach(), "a prediction": logits.detach()}
        gradients = torch.autograd.grad(losses.sum(), list(trained.values()), allow_unused=True)
        found |= {name: each.detach() for name, each in zip(trained, gradients, strict=True) if each is not None}
        for place, member in enumerate(members):
            found |= {f"{place}.{name}": tensor.clone() for name, tensor in _named(member, "_buffers")}
    return found


def _is_near(one: Tensor, other: Tensor) -> bool:
    if not other.is_floating_point():
        return torch.equal(one, other)
    coarse = torch.is_autocast_enabled(other.device.type)
    step = torch.finfo(torch.bfloat16 if coarse else other.dtype).eps * (10 if coarse else _ROUNDINGS)
    most = float(other.abs().nan_to_num().max()) if other.numel() else 0.0
    return torch.allclose(one.float(), other.float(), rtol=0.0, atol=step * most + 1e-12, equal_nan=True)
