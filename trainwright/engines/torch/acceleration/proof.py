"""Before the first step: the fast way and the plain way on the same samples, parameter by parameter.

Both are compared with the same computation in a wider format. A fast way is used if its gradients are not much further
from that than those of the plain way are: at most twice as far, for each parameter.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainwright.engines.torch.acceleration.blocks import repeated_blocks
from trainwright.engines.torch.acceleration.call import Call
from trainwright.engines.torch.acceleration.undisturbed import WeightsUnwritten, undisturbed
from trainwright.engines.torch.memory import is_out_of_memory
from trainwright.engines.torch.targets import is_mapping

#: How many times the plain way's error the fast way's may be.
BOUND = 2.0

#: Roundings of the wide format that an error may always have: a float64 training is compared with itself.
ROUNDINGS = 8

#: How much more is allowed to a gradient that is zero but for rounding.
ROUNDING_ALONE = 4

#: Attributes of modules that say how often something is dropped: transformers hands them to functions.
_DROPPING = ("dropout", "drop_prob", "drop_rate", "p_drop", "layerdrop", "drop_path")


@dataclass(frozen=True)
class Comparison:
    """How far the fast way is from the plain way's results at the parameter where it is worst."""

    parameter: str
    fast: float
    plain: float

    @property
    def ratio(self) -> float:
        """The fast way's error as a multiple of what is allowed to the plain way."""
        return self.fast / self.plain if self.plain else math.inf if self.fast else 1.0

    @property
    def passed(self) -> bool:
        return math.isfinite(self.fast) and self.ratio <= BOUND


@dataclass(frozen=True)
class Passes:
    """How one pass over some samples is computed: the network, its inputs, and the number formats of the training."""

    network: nn.Module
    call: Call
    autocast: Callable[[], contextlib.AbstractContextManager[Any]]

    def gradients(self, dtype: torch.dtype | None = None, *, is_watched: bool = False) -> dict[str, Tensor]:
        """Of the loss by each parameter that is trained, and the loss itself, in the training's formats.

        Args:
            is_watched: Raise :class:`WritesWeights` where the forward would change a weight. In the plain way only.
        """
        call = self.call.copied(dtype)
        with undisturbed(self.network), self._kept_small(dtype):
            with self.autocast(), WeightsUnwritten(self.network) if is_watched else contextlib.nullcontext():
                loss = scalar_of(without_hooks(self.network)(*call.args, **call.kwargs))
            return _gradients(loss, dict(trained(self.network)))

    def wide_gradients(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The same with all numbers in ``dtype``."""
        frozen = [one for block in self._plain_blocks() for one in block.parameters() if not one.requires_grad]
        try:
            return self._widened(dtype, later=frozen)
        except RuntimeError as error:
            if not frozen or is_out_of_memory(error):
                raise
            # A block that is checkpointed by itself is computed again when its wide copies are gone.
            return self._widened(dtype, later=[])

    def _widened(self, dtype: torch.dtype, later: list[nn.Parameter]) -> dict[str, Tensor]:
        device = next(self.network.parameters()).device.type
        autocast = torch.autocast(device, enabled=False)
        with in_format(self.network, dtype, later=later), exact_products():
            return replace(self, autocast=lambda: autocast).gradients(dtype, is_watched=True)

    @contextlib.contextmanager
    def _kept_small(self, dtype: torch.dtype | None) -> Iterator[None]:
        """Blocks that are called in the plain way keep their inputs only: what is compared stays far below a step."""
        blocks = self._plain_blocks()
        for block in blocks:
            block._compiled_call_impl = _recomputed(block, dtype)
        try:
            yield
        finally:
            for block in blocks:
                block._compiled_call_impl = None

    def _plain_blocks(self) -> list[nn.Module]:
        return [block for block in repeated_blocks(self.network) if block._compiled_call_impl is None]


def without_hooks(network: nn.Module) -> Callable[..., Any]:
    """Its forward, and what is put around it: the network's own hooks would hear of calls that no training makes."""
    return getattr(network._compiled_call_impl, "without_hooks", network.forward)


def _recomputed(block: nn.Module, dtype: torch.dtype | None) -> Callable[..., Any]:
    """Calls ``block`` without keeping what it computes, nor copies of its frozen weights in ``dtype``."""

    def compute(*args: Any, **kwargs: Any) -> Any:
        with contextlib.nullcontext() if dtype is None else in_format(block, dtype):
            return block._call_impl(*args, **kwargs)

    return lambda *args, **kwargs: checkpoint(compute, *args, use_reentrant=False, **kwargs)


def trained(network: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad)


def errors(found: dict[str, Tensor], wide: dict[str, Tensor]) -> dict[str, Tensor]:
    """How far each gradient is from that in the wider format, as a share of its length. Nobody waits for a device."""
    return {
        name: torch.linalg.vector_norm(found[name].to(exact.dtype) - exact)
        / torch.linalg.vector_norm(exact).clamp(min=1e-30)
        for name, exact in wide.items()
    }


def worst(fast: dict[str, Tensor], plain: dict[str, Tensor]) -> Comparison:
    """The parameter whose error grew most.

    One whose plain error is small by chance, because it has few numbers say, is measured by what is usual here; and
    what is known in no wider format, by that format's own rounding.
    """
    # One wait for all of them.
    fast_values, plain_values = torch.stack([*fast.values(), *plain.values()]).view(2, -1).tolist()
    # Gradients that are zero in either way, as half of a new adapter's are, say nothing of what is usual.
    usual = statistics.median([error for error in plain_values if error > 0] or [0.0])
    usual = max(usual, ROUNDINGS * torch.finfo(next(iter(plain.values())).dtype).eps)
    found = (
        Comparison(name, error, _allowed(allowed, usual))
        for name, error, allowed in zip(plain, fast_values, plain_values, strict=True)
    )
    return max(found, key=lambda one: math.inf if math.isnan(one.ratio) else one.ratio)


def _allowed(plain: float, usual: float) -> float:
    """A gradient that is nothing but rounding, as that of a key's bias is, has another size each time."""
    return ROUNDING_ALONE * plain if plain >= 0.5 else max(plain, usual)


def wider_than(dtype: torch.dtype) -> torch.dtype:
    """The format in which results count as exact for a training in ``dtype``."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else torch.float64


@contextlib.contextmanager
def nothing_dropped(network: nn.Module) -> Iterator[None]:
    """Within it dropout drops nothing."""
    rates = _rates_of_dropout(network)
    try:
        for module, name, _ in rates:
            setattr(module, name, 0.0)
        yield
    finally:
        for module, name, value in rates:
            setattr(module, name, value)


def drops(network: nn.Module) -> bool:
    """Whether it has dropout that drops something."""
    return bool(_rates_of_dropout(network))


def _rates_of_dropout(network: nn.Module) -> list[tuple[nn.Module, str, float]]:
    return [
        (module, name, value)
        for module in network.modules()
        for name, value in vars(module).items()
        if isinstance(value, float) and value > 0 and _drops(module, name)
    ]


@contextlib.contextmanager
def in_format(network: nn.Module, dtype: torch.dtype, later: Iterable[Tensor] = ()) -> Iterator[None]:
    """Within it the network's numbers are copies in ``dtype``, but for those that come ``later``.

    What is in that format already stays.
    """
    left = {id(tensor) for tensor in later}
    before: list[tuple[dict[str, Any], str, Tensor]] = [
        (table, name, tensor)
        for module in network.modules()
        for table in (module._parameters, module._buffers)
        for name, tensor in table.items()
        if tensor is not None and tensor.is_floating_point() and tensor.dtype != dtype and id(tensor) not in left
    ]
    # One copy of a tensor that is in several places.
    copies: dict[int, Any] = {}
    try:
        for table, name, tensor in before:
            if id(tensor) not in copies:
                wide = tensor.detach().to(dtype)
                is_parameter = isinstance(tensor, nn.Parameter)
                copies[id(tensor)] = nn.Parameter(wide, tensor.requires_grad) if is_parameter else wide
            table[name] = copies[id(tensor)]
        yield
    finally:
        for table, name, tensor in before:
            table[name] = tensor


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Matrix products in single precision, whatever shortcuts the process allows itself."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _drops(module: nn.Module, name: str) -> bool:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return name == "p"
    return any(word in name for word in _DROPPING)


def scalar_of(outputs: Any) -> Tensor:
    """The loss, or where there is none something that depends on every output."""
    if is_mapping(outputs) and isinstance(outputs.get("loss"), Tensor):
        return outputs["loss"].mean()
    found = [one for one in torch.utils._pytree.tree_leaves(_plain(outputs)) if isinstance(one, Tensor)]
    found = [one for one in found if one.is_floating_point() and one.requires_grad]
    if not found:
        raise ValueError("the network returns nothing that depends on its parameters")
    return torch.stack([one.float().pow(2).mean() if one.ndim else one.float() for one in found]).sum()


def _plain(outputs: Any) -> Any:
    return dict(outputs) if is_mapping(outputs) else outputs


def _gradients(loss: Tensor, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    known = {name: one.detach() for name, one in zip(parameters, found, strict=True) if one is not None}
    return {"the loss": loss.detach(), **known}
