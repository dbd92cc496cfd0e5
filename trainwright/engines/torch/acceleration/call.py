"""What a network is called with: copied for a pass over it, cut into pieces, put into other shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainwright.engines.torch.acceleration.shapes import resized, shapes_of
from trainwright.engines.torch.moving import rebuilt
from trainwright.engines.torch.split_batch import cut_batch
from trainwright.engines.torch.targets import count_rows

#: Values that no pass can change.
_FIXED = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, type(None))


#: By what transformers' models divide the sum of a step's losses.
_COUNT = "num_items_in_batch"


@dataclass(frozen=True)
class Call:
    """Arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def rows(self) -> int:
        return count_rows(self._named())

    def piece(self, samples: int) -> Call:
        """The first ``samples`` of it, or all where it is not cut by samples.

        >>> Call((torch.arange(6),), {"scale": 2}).piece(2)
        Call(args=(tensor([0, 1]),), kwargs={'scale': 2})
        """
        try:
            return self._with(cut_batch(self._named(), max(1, self.rows // samples))[0])
        except ValueError:
            return self

    def shortest_and_longest_first(self) -> Call:
        """Its samples in another order: with the least and with the most that is no padding in front, if it says so.

        >>> mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]])
        >>> Call((), {"attention_mask": mask}).shortest_and_longest_first().kwargs["attention_mask"].tolist()
        [[1, 0, 0], [1, 1, 1], [1, 1, 0]]
        """
        mask = self.kwargs.get("attention_mask")
        if not isinstance(mask, Tensor) or mask.ndim != 2 or len(mask) != self.rows:
            return self
        order = mask.sum(1).argsort(stable=True)
        order = torch.cat([order[:1], order[1:].flip(0)])
        return self._with({name: _reordered(value, order) for name, value in self._named().items()})

    def repeated(self, times: int) -> Call:
        """The same samples ``times`` times: what is a mean over them, or their sum by a count, stays as it is.

        >>> Call((torch.arange(2),), {"num_items_in_batch": 4}).repeated(2)
        Call(args=(tensor([0, 1, 0, 1]),), kwargs={'num_items_in_batch': 8})
        """
        rows, named = self.rows, self._named()
        found = {name: _repeated(value, rows, times) for name, value in named.items()}
        if found.get(_COUNT) is not None:
            found[_COUNT] = found[_COUNT] * times
        return self._with(found)

    def shapes(self) -> Any:
        """Those of its tensors, as JSON has them."""
        return shapes_of(self._named())

    def in_shapes(self, shapes: Any) -> Call:
        return self._with(resized(self._named(), shapes))

    def copied(self, dtype: torch.dtype | None = None) -> Call:
        """Tensors of its own, without what they were computed from; numbers in ``dtype``, if one is given.

        Whatever a pass does to them, and to what they depend on, stays within it.
        """
        return self._with(_copied(self._named(), dtype))

    def _named(self) -> dict[Any, Any]:
        """By number or name, in one table."""
        return {**dict(enumerate(self.args)), **self.kwargs}

    def _with(self, named: dict[Any, Any]) -> Call:
        count = len(self.args)
        # Shapes that were read from a file have texts for numbers; what was made of them has not.
        return Call(tuple(named[number] for number in range(count)), {name: named[name] for name in self.kwargs})


def _repeated(value: Any, rows: int, times: int) -> Any:
    return _each(value, lambda one: torch.cat([one] * times) if one.ndim and len(one) == rows else one)


def _reordered(value: Any, order: Tensor) -> Any:
    return _each(value, lambda one: one[order.to(one.device)] if one.ndim and len(one) == len(order) else one)


def _copied(value: Any, dtype: torch.dtype | None) -> Any:
    def copy(one: Tensor) -> Tensor:
        wanted = dtype if dtype is not None and one.is_floating_point() else one.dtype
        return one.detach().to(wanted, copy=True).requires_grad_(one.requires_grad)

    return _each(value, copy, _refuse_changeable)


def _refuse_changeable(value: Any) -> Any:
    if not isinstance(value, _FIXED):
        raise ValueError(f"the network is called with a {type(value).__name__}, which a pass may change")
    return value


def _each(value: Any, change: Callable[[Tensor], Tensor], other: Callable[[Any], Any] = lambda value: value) -> Any:
    """``value`` with each tensor in nested dicts, lists and tuples changed; ``other`` says what becomes of the rest."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        kind: Any = type(value)
        found = {name: _each(one, change, other) for name, one in value.items()}
        return found if kind is dict else kind(found)
    if isinstance(value, (list, tuple)):
        return rebuilt(value, [_each(one, change, other) for one in value])
    return other(value)
