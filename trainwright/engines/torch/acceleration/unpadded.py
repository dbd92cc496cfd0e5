"""A batch of texts as one row of tokens without padding, and a block's arguments for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trainwright.engines.torch.acceleration.unpadded_attention import Bounds

#: On a GPU rows are filled up to a multiple of this: kernels are made for few lengths.
FILLED_UP_TO = 256

#: What blocks are given beside hidden states and masks: numbers for each position.
_OF_POSITIONS = ("position_embeddings", "position_ids")


class Unpadded:
    """What stands in place of a mask while one batch goes through the network."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        #: What was gathered for the first block serves the others.
        self._gathered: dict[int, tuple[Tensor, Tensor]] = {}

    @classmethod
    def of(cls, kept: Tensor, *, is_causal: bool) -> Unpadded:
        """A batch of which the places that are ``kept`` are no padding."""
        places = kept.flatten().nonzero().squeeze(1)
        ends = nn.functional.pad(kept.sum(1).cumsum(0), (1, 0))
        spare = -len(places) % FILLED_UP_TO if kept.is_cuda else 0
        if spare:
            # A sample of its own, whose place is beyond the batch.
            places = nn.functional.pad(places, (0, spare), value=kept.numel())
            ends = torch.cat([ends, ends[-1:] + spare])
        return cls(Bounds(ends.to(torch.int32), places, kept, is_causal))

    def enter(self, states: Tensor) -> Tensor:
        """Samples x positions x ... to one row of tokens: 1 x tokens x ..."""
        flat = states.expand(*self.bounds.kept.shape, *states.shape[2:]).flatten(0, 1)
        return flat.index_select(0, self.bounds.places.clamp(max=len(flat) - 1))[None]

    def leave(self, states: Tensor) -> Tensor:
        """The other way round, with zeros for padding."""
        samples, length = self.bounds.kept.shape
        empty = states.new_zeros((samples * length + 1, *states.shape[2:]))
        return empty.index_copy(0, self.bounds.places, states[0])[:-1].unflatten(0, (samples, length))

    def gathered(self, value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(self.gathered(one) for one in value)
        if not isinstance(value, Tensor) or value.ndim < 2:
            return value
        if id(value) not in self._gathered:
            self._gathered[id(value)] = (value, self.enter(value))
        return self._gathered[id(value)][1]


def row_of(
    given: Unpadded, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_first: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A block's arguments for one row of tokens."""
    named = {**dict(enumerate(args)), **kwargs}
    states = 0 if args else "hidden_states"
    for name, value in named.items():
        if value is given:
            named[name] = given.bounds
        elif name == states:
            named[name] = given.enter(value) if is_first else value
        elif name in _OF_POSITIONS:
            named[name] = given.gathered(value)
        elif isinstance(value, Tensor) and value.ndim > 1:
            raise ValueError(f"its blocks are given {name!r}, and it is not known which tokens that is about")
    return tuple(named[number] for number in range(len(args))), {name: named[name] for name in kwargs}
