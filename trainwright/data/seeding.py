"""Random numbers drawn while data is read: a function of seed, epoch and sample, and nobody else's affair.

Datasets and collators draw from the global generators of Python, numpy and torch, and so does the model (dropout).
Here reading gets random numbers of its own and the main process's generators are left as they were.
"""

from __future__ import annotations

import ctypes
import hashlib
import operator
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import fetch as torch_fetch

from trainwright.config.origin import library_of
from trainwright.core.filler import Filler
from trainwright.data.exact_json import from_plain, to_plain
from trainwright.data.in_memory import Gather, column_gather, tensor_gather
from trainwright.data.order import mixed_seed
from trainwright.data.sharding import FillerIndices
from trainwright.data.torch_generator import read_telling
from trainwright.randomness.global_generators import GeneratorStates, HostStates
from trainwright.randomness.own_generators import OwnGenerators, States, look

# Keeps the draws of a collator apart from those of the samples it is given.
_COLLATOR_STREAM = "collate"
# Keeps the draws of generators that data has for itself apart from those of the global ones.
_OWN_STREAM = "own"

_torch_generator = torch.default_generator
_TORCH_BYTES = _torch_generator.get_state().numel()
_memcmp: Any = (ctypes.CDLL("msvcrt") if sys.platform == "win32" else ctypes.CDLL(None)).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class AllStates:
    """Python's, numpy's and torch's global CPU generators at one moment."""

    __slots__ = ("host", "telling", "torch")

    def __init__(self, host: HostStates, torchs: torch.Tensor, telling: bytes) -> None:
        self.host = host
        self.torch = torchs
        #: Where torch's generator stands, in the few bytes that tell; empty where they cannot be read.
        self.telling = telling


class Generators:
    """The three global generators together, at about a microsecond a call.

    Devices' generators are left out: reading them waits for the device, and data is made on the CPU.
    """

    def __init__(self) -> None:
        self._host = GeneratorStates()
        self._torch, self._telling = _torch_generator.get_state(), b""

    def capture(self) -> AllStates:
        telling = read_telling()
        if not telling or telling != self._telling:
            self._torch, self._telling = _torch_generator.get_state(), telling
        return AllStates(self._host.capture(), self._torch, telling)

    def moved_since(self, states: AllStates) -> bool:
        if self._host.moved_since(states.host):
            return True
        if states.telling and states.telling == read_telling():
            return False
        # As `torch.equal`, which takes five times as long for so little.
        before, now = states.torch, _torch_generator.get_state()
        return _memcmp(before.data_ptr(), now.data_ptr(), _TORCH_BYTES) != 0

    def restore(self, states: AllStates) -> None:
        self._host.restore(states.host)
        _torch_generator.set_state(states.torch)


def seed_generators(seed: int) -> None:
    """Start the three global generators at ``seed``."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    # `torch.manual_seed` would also reseed the devices.
    _torch_generator.manual_seed(seed)


def seed_of(*parts: Any) -> int:
    """A 63-bit seed from numbers and dataset keys of any kind."""
    digest = hashlib.blake2b(repr([_plain_key(part) for part in parts]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class MapFetch:
    """Makes a batch of a map-style dataset's samples, in the main process and in workers alike.

    What a sample draws at random is a function of (seed, epoch, index); what the collator draws, and a dataset that
    fetches whole batches (``__getitems__``), of (seed, epoch, the batch's indices). So it does not matter which process
    fetches a batch, what was fetched before it, and whether the run was resumed.

    Seeding costs ten microseconds a sample, which data without randomness should not pay. So a batch is first fetched
    as it is; if that moved a generator, the generators are put back, and this batch and all later ones are seeded.
    Among these are generators that dataset or collator keep for themselves.
    """

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any], seed: int) -> None:
        self.dataset = dataset
        self.collate = collate
        self.seed = seed
        #: Takes a batch at once from data in memory, where nothing can draw; and from columns, where something might.
        self._take: Gather | None = None
        self._take_columns: Gather | None = None
        self.draws = False
        self._generators = Generators()
        self._own = OwnGenerators()
        #: When own generators were last looked for; some are made by the first fetch, some anew in each epoch.
        self._looked: int | None = None
        self._is_first = True

    def __getstate__(self) -> dict[str, Any]:
        # In another process the dataset's generators are other objects.
        left = {"_own": OwnGenerators(), "_looked": None, "_is_first": True, "_take": None, "_take_columns": None}
        return {**vars(self), **left}

    def use_collator(self, collate: Callable[[list[Any]], Any]) -> None:
        """Make batches with ``collate`` from now on."""
        self.collate, self._looked = collate, None

    def __call__(self, epoch: int, indices: Sequence[Any]) -> Any:
        if isinstance(indices, FillerIndices):
            return Filler(self(epoch, list(indices)))
        if epoch != self._looked:
            self._look(epoch)
        if self._take is not None and (taken := self._take(indices)) is not None:
            return taken
        before = self._generators.capture()
        resting = self._own.capture() if self._own.found else {}
        if not self.draws:
            try:
                batch = self._fetch(indices)
            except BaseException:
                self._put_back(before, resting)
                raise
            if self._is_first:
                self._look(epoch)
                self._is_first = False
            if not self._generators.moved_since(before) and not (self._own.found and self._own.moved_since(resting)):
                return batch
            self.draws = True
            # Freed before the batch is made again: two at once may not fit.
            del batch
        try:
            return self._fetch_seeded(epoch, indices)
        finally:
            self._put_back(before, resting)

    def _look(self, epoch: int) -> None:
        found = look({"dataset": self.dataset, "collator": self.collate})
        self._own.found, self._looked = found.generators, epoch
        is_torchs = torch_fetch._MapDatasetFetcher is _TORCHS_FETCHER
        self._take = tensor_gather(self.dataset, self.collate) if is_torchs else None
        self._take_columns = column_gather(self.dataset, self.collate) if is_torchs else None

    def _put_back(self, before: AllStates, resting: States) -> None:
        self._generators.restore(before)
        if resting:
            self._own.restore(resting)

    def _seed(self, *parts: Any) -> None:
        seed_generators(seed_of(*parts))
        if self._own.found:
            self._own.seed(lambda place: seed_of(*parts, _OWN_STREAM, place))

    def _fetch(self, indices: Sequence[Any]) -> Any:
        dataset = self.dataset
        if (fetcher := torch_fetch._MapDatasetFetcher) is not _TORCHS_FETCHER:
            return fetcher(dataset, True, self.collate, False).fetch(indices)
        if self._take_columns is not None:
            return self._take_columns(indices)
        fetch_many = getattr(dataset, "__getitems__", None)
        if fetch_many:
            return self.collate(fetch_many(indices))
        return self.collate([dataset[index] for index in indices])

    def _fetch_seeded(self, epoch: int, indices: Sequence[Any]) -> Any:
        if torch_fetch._MapDatasetFetcher is not _TORCHS_FETCHER:
            self._seed(self.seed, epoch, *indices)
            return self._fetch(indices)
        fetch_many = getattr(self.dataset, "__getitems__", None)
        if fetch_many:
            self._seed(self.seed, epoch, *indices)
            samples = fetch_many(indices)
        else:
            samples = []
            for index in indices:
                self._seed(self.seed, epoch, index)
                samples.append(self.dataset[index])
        self._seed(self.seed, epoch, _COLLATOR_STREAM, *indices)
        return self.collate(samples)


#: torch's own fetcher. Libraries that pack samples put another in its place, for indices in groups.
_TORCHS_FETCHER = torch_fetch._MapDatasetFetcher if library_of(torch_fetch._MapDatasetFetcher) == "torch" else None


class StreamRandom:
    """The random numbers of a stream that is read in the main process: a state of its own, swapped in for each read.

    A stream may carry randomness from sample to sample (a shuffle buffer), so it cannot be seeded by sample. Seeded at
    the start of an epoch and kept apart from all else, it repeats itself when the epoch is read again.
    """

    def __init__(self, seed: int, epoch: int) -> None:
        self._generators = Generators()
        self._main = self._states = self._generators.capture()
        with self:
            seed_generators(mixed_seed(seed, epoch))

    def __enter__(self) -> None:
        """From here on the global generators are the stream's."""
        self._main = self._generators.capture()
        self._generators.restore(self._states)

    def __exit__(self, *error: object) -> None:
        """From here on they are again what they were."""
        self._states = self._generators.capture()
        self._generators.restore(self._main)

    def snapshot(self) -> AllStates:
        """The present state; never changes once taken."""
        return self._states

    def load(self, plain: Any) -> None:
        """Continue where the state that ``plain_states`` wrote was taken."""
        python, array, torchs = from_plain(plain)
        with self:
            random.setstate(python)
            np.random.set_state(array)
            _torch_generator.set_state(torchs)


def plain_states(states: AllStates) -> Any:
    """Generator states as JSON data."""
    return to_plain([states.host.python, states.host.numpy, states.torch])


class StreamRun(Iterator[Any]):
    """One pass over a stream, each read under the stream's own random numbers."""

    def __init__(self, make_iterator: Callable[[], Iterator[Any]], seed: int, epoch: int) -> None:
        self.random = StreamRandom(seed, epoch)
        #: Whether the stream is known to have come to its end.
        self.ended = False
        with self.random:
            self._batches = make_iterator()

    def __next__(self) -> Any:
        with self.random:
            try:
                batch = next(self._batches)
            except StopIteration:
                self.ended = True
                raise
        # Ours knows after a short batch that there is no other.
        self.ended = getattr(self._batches, "ended", False)
        return batch


class CollatedStream(Iterator[Any]):
    """Batches of ``size`` consecutive samples; the last may be shorter."""

    def __init__(self, samples: Iterator[Any], size: int, drop_last: bool, collate: Callable[[list[Any]], Any]) -> None:
        self._samples = samples
        self._size = size
        self._drop_last = drop_last
        self._collate = collate
        self.ended = False

    def __next__(self) -> Any:
        samples: list[Any] = []
        while len(samples) < self._size and not self.ended:
            try:
                samples.append(next(self._samples))
            except StopIteration:
                self.ended = True
        if not samples or (self._drop_last and len(samples) < self._size):
            raise StopIteration
        return self._collate(samples)


def _plain_key(key: Any) -> Any:
    """Indices as numbers, whatever integer type they come in; other keys as they show themselves."""
    try:
        return operator.index(key)
    except TypeError:
        return key if isinstance(key, str) else repr(key)
