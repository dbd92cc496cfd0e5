"""Passes over a sampler that somebody else wrote, so that its order is a function of (seed, epoch)."""

from __future__ import annotations

import contextlib
import enum
import hashlib
import random
import time
from collections.abc import Callable, Generator, Mapping, Sized
from typing import Any

import numpy as np
import torch

from trainwright.config.origin import library_of
from trainwright.data.sampler_copies import twin
from trainwright.randomness import generators
from trainwright.randomness.own_generators import OwnGenerators

#: Samplers longer than this, and those that take longer for a pass, are not tried out before the training.
_LONGEST, _SLOWEST_SECONDS = 1_000_000, 1.0
#: Libraries whose samplers are known to draw from their generator and to remember nothing else.
_KNOWN = frozenset(("torch", "trainwright", "accelerate", "transformers", "datasets", "builtins"))


def mixed_seed(*parts: int) -> int:
    """A 63-bit seed in which every bit depends on every part.

    Adding parts up would make (seed 1, epoch 0) and (seed 0, epoch 1) the same stream.
    """
    digest = hashlib.blake2b(repr(tuple(map(int, parts))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def set_epoch_of(thing: object, epoch: int) -> None:
    """Tell ``thing`` the epoch, if it wants to know."""
    method = getattr(thing, "set_epoch", None)
    if callable(method):
        method(epoch)


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell whatever in ``loader`` shuffles by epoch which epoch it is; ours passes it on by itself."""
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)
        return
    for part in ("batch_sampler", "sampler", "dataset"):
        set_epoch_of(getattr(loader, part, None), epoch)


class Habit(enum.Enum):
    """Return what two passes over the same epoch have in common."""

    #: All: the order follows from generators and epoch.
    REPEATS = enum.auto()
    #: The second goes on from where the first ended, in a way that repeats itself from the start.
    REMEMBERS = enum.auto()
    #: Nothing that is known.
    UNREPEATABLE = enum.auto()
    #: It could not be tried without disturbing the sampler, or would take too long.
    UNTRIED = enum.auto()


class Replay:
    """Runs an iterable to its end so that what it draws at random is a function of (seed, epoch).

    Global generators are seeded for the epoch, and its own are put to a state that follows from the one they have and
    the epoch (in epoch 0 it is the one they have); all are put back afterwards. A torch generator that the iterable was
    given as ``generator`` starts from its own seed plus the epoch.

    Where an iterable remembers more than its generators (a list that it shuffles in place, a counter), every epoch is
    passed once, in order, and a resumed run passes the epochs before its own again.
    """

    def __init__(self, source: object, seed: int, *, is_tried: bool = True) -> None:
        self.source = source
        self.seed = seed
        self.own = _own_of(source)
        self.habit = habit_of(source, lambda one: self._passed(one, _own_of(one), 0)) if is_tried else Habit.REPEATS
        self._next = 0
        self._kept: dict[int, list[Any]] = {}
        self._pristine = twin(source) if self.habit is Habit.REMEMBERS else None

    def load(self, stored: Mapping[str, Any]) -> dict[str, str]:
        """Give its generators the states of a checkpoint; returns what does not fit, with the reason."""
        self._kept = {}
        if self._pristine is not None:
            _own_of(self._pristine).load(stored)
            if self._next:
                # What it remembers of earlier passes cannot be taken from it.
                self.source, self._next = twin(self._pristine), 0
                self.own = _own_of(self.source)
        self.own.look_again()
        return self.own.load(stored)

    def __call__(self, epoch: int) -> list[Any]:
        if self.habit in (Habit.REPEATS, Habit.UNTRIED):
            self.own.look_again()
            return self._passed(self.source, self.own, epoch)
        if epoch not in self._kept:
            self._catch_up(epoch)
        return self._kept[epoch]

    def _catch_up(self, epoch: int) -> None:
        """Pass the epochs from the last one passed to ``epoch``; from the first one on if it lies behind."""
        source, first = self.source, self._next
        if epoch < self._next:
            again = twin(self._pristine) if self._pristine is not None else None
            source, first = (self.source, epoch) if again is None else (again, 0)
        else:
            self._next = epoch + 1
        for number in range(first, epoch + 1):
            # Two epochs are asked for in turn where one ends and the next begins.
            self._kept = dict(list(self._kept.items())[-1:])
            self._kept[number] = self._passed(source, _own_of(source), number)

    def _passed(self, source: Any, own: OwnGenerators, epoch: int) -> list[Any]:
        resting = own.capture()
        given = _given_generator(source)
        try:
            with _global_generators_seeded(mixed_seed(self.seed, epoch)):
                for path, generator in own.found.items():
                    if generator is given:
                        given.manual_seed(given.initial_seed() + epoch)
                    elif epoch:
                        generators.seed(generator, mixed_seed(generators.digest(generator, resting[path]), epoch))
                # A batch sampler may not tell the sampler inside it.
                set_epoch_of(getattr(source, "sampler", None), epoch)
                set_epoch_of(source, epoch)
                return list(source)
        finally:
            own.restore(resting)


def follows_epochs(sampler: Any) -> bool:
    """Return True when a sampler that is told the epoch needs nothing else for its order, as far as can be seen."""
    if _own_of(sampler).found:
        return False

    def passed(one: Any) -> list[Any]:
        set_epoch_of(one, 0)
        return list(one)

    with _global_generators_seeded(0):
        return habit_of(sampler, passed) in (Habit.REPEATS, Habit.UNTRIED)


def habit_of(source: object, passed: Callable[[Any], list[Any]]) -> Habit:
    """Try ``source`` out on copies of it, which ``passed`` runs to their end; it is left as it is."""
    if library_of(type(source)) in _KNOWN:
        return Habit.REPEATS
    if not isinstance(source, Sized) or len(source) > _LONGEST:
        return Habit.UNTRIED
    one, other = twin(source), twin(source)
    if one is None or other is None:
        return Habit.UNTRIED
    try:
        began = time.monotonic()
        first = _comparable(passed(one))
        if time.monotonic() - began > _SLOWEST_SECONDS:
            return Habit.UNTRIED
        if _comparable(passed(other)) != first:
            return Habit.UNREPEATABLE
        return Habit.REPEATS if _comparable(passed(one)) == first else Habit.REMEMBERS
    except Exception:
        # Whatever is wrong with it, or with a copy of it: the training will say so, if it matters.
        return Habit.UNTRIED


def _comparable(order: list[Any]) -> list[Any]:
    """``order`` with numbers in the place of arrays and tensors, which do not compare as numbers do."""
    return [item if isinstance(item, int) else repr(item) for item in order]


def _own_of(source: object) -> OwnGenerators:
    """Generators of a sampler, without those of the data that it is over."""
    inner = getattr(source, "sampler", None)
    data = [vars(one).get(name) for one in (source, inner) if hasattr(one, "__dict__") for name in _DATA]
    return OwnGenerators(lambda: {"sampler": source}, passed_by=data)


_DATA = ("data_source", "dataset", "datasets")


def _given_generator(source: object) -> Any:
    # A batch sampler draws through the sampler inside it.
    generator = getattr(source, "generator", None) or getattr(getattr(source, "sampler", None), "generator", None)
    return generator if isinstance(generator, torch.Generator) else None


@contextlib.contextmanager
def _global_generators_seeded(seed: int) -> Generator[None, None, None]:
    """Python's, numpy's and torch's global generators start at ``seed`` inside, and are as before outside."""
    python, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            random.seed(seed)
            np.random.seed(seed % 2**32)
            # `torch.manual_seed` would also reseed CUDA, which fork_rng(devices=[]) does not put back.
            torch.default_generator.manual_seed(seed)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy_state)
