"""Several samplers, or several collators, as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import Sampler

from trainwright.data.order import Order
from trainwright.data.replay import Replay


class ComposedCollator:
    """Applies collators one after the other: the first gets the samples, each other one what the last returned.

    >>> collate = ComposedCollator([sum, lambda total: {"total": total}])
    >>> collate([1, 2, 3])
    {'total': 6}
    """

    def __init__(self, collators: Sequence[Callable[[Any], Any]]) -> None:
        if not collators or not all(callable(collate) for collate in collators):
            raise ValueError(f"collators must be a list of functions, not {list(collators)!r}.")
        self.collators = list(collators)

    def __call__(self, samples: Any) -> Any:
        for collate in self.collators:
            samples = collate(samples)
        return samples


class ComposedOrder(Order):
    """The order that several samplers make, each choosing among the indices of the one before it.

    A sampler object chooses by place: its 0 is the first index of the one before. A function, or a sampler class, is
    called with the list of indices and gives indices. What they draw at random is a function of (seed, epoch).

    >>> order = ComposedOrder([range(10, 20), lambda indices: indices[::2], [0, 2]], length=100, seed=0)
    >>> order.indices()
    [10, 14]
    """

    def __init__(self, samplers: Sequence[Any], length: int, seed: int) -> None:
        if not samplers:
            raise ValueError("sampler=[] names no sampler: leave it out.")
        self._length = length
        self._parts = [_Part(sampler, seed) for sampler in samplers]
        super().__init__(0)
        self.n = len(self.indices())

    @property
    def replays(self) -> list[Replay]:
        """Return the passes over samplers that are objects."""
        return [part.replay for part in self._parts if part.replay is not None]

    def indices(self) -> list[int]:
        found = list(range(self._length))
        for part in self._parts:
            found = part.among(found, self.epoch)
        wrong = next((index for index in found if not 0 <= index < self._length), None)
        if wrong is not None:
            raise ValueError(f"The samplers ask for sample {wrong} of {self._length}.")
        if self.n and len(found) != self.n:
            raise ValueError(
                f"The samplers gave {self.n} samples in the first epoch and {len(found)} in epoch {self.epoch}; every "
                "epoch must have the same number, so that a resumed run finds its place."
            )
        return found


class _Part:
    """One sampler of several."""

    def __init__(self, sampler: Any, seed: int) -> None:
        if isinstance(sampler, str) or not (callable(sampler) or hasattr(sampler, "__iter__")):
            raise ValueError(f"sampler={sampler!r} must be a sampler, indices, or a function of the indices before it.")
        self._name = getattr(sampler, "__name__", type(sampler).__name__)
        self._builds = callable(sampler) and not isinstance(sampler, Sampler)
        self._sampler, self._seed = sampler, seed
        self.replay = None if self._builds else Replay(sampler, seed)

    def among(self, indices: list[int], epoch: int) -> list[int]:
        if self.replay is not None:
            return self._by_place([int(place) for place in self.replay(epoch)], indices)
        built = _Built(self._sampler, indices)
        chosen = [int(index) for index in Replay(built, self._seed, is_tried=False)(epoch)]
        return self._by_place(chosen, indices) if built.gives_places else chosen

    def _by_place(self, places: list[int], indices: list[int]) -> list[int]:
        for place in places:
            if not 0 <= place < len(indices):
                raise ValueError(
                    f"sampler {self._name} asks for number {place} of {len(indices)} samples that the one before "
                    "it chose."
                )
        return [indices[place] for place in places]


class _Built:
    """What a function or class makes of the indices; made when it is walked, so that its draws are repeatable."""

    def __init__(self, build: Callable[[list[int]], Any], indices: list[int]) -> None:
        self._build, self._indices = build, indices
        #: torch's samplers over a data source give places in it and not what lies there.
        self.gives_places = False

    def __iter__(self) -> Iterator[Any]:
        built = self._build(self._indices)
        if not hasattr(built, "__iter__"):
            name = getattr(self._build, "__name__", type(self._build).__name__)
            raise ValueError(f"sampler {name} returned a {type(built).__name__}; it must return indices.")
        self.gives_places = getattr(built, "data_source", None) is self._indices
        return iter(list(built))
