"""Training batches grouped by optimizer step, where in the data they stand, and how to go on from there."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple

from trainwright.config.backends import ALONE, ProcessRank
from trainwright.core.filler import Filler
from trainwright.data.loader import Loader
from trainwright.data.own_data import SamplerGenerators
from trainwright.data.position import (
    Facts,
    Start,
    facts_of,
    left_out_now,
    place_of_all,
    start_from,
    starts_by_index,
    units_in_epoch,
)
from trainwright.data.replay import set_epoch
from trainwright.data.stream_reader import StreamPlace, StreamReader, of_process

logger = logging.getLogger("trainwright")

Draw = Callable[[Iterator[Any], int], list[Any]]


def take(iterator: Iterator[Any], count: int) -> list[Any]:
    """The next ``count`` batches, fewer at the end."""
    return list(islice(iterator, count))


class _Mark(NamedTuple):
    """A place between two groups."""

    epoch: int
    batches: int = 0
    #: Where a stream stands there.
    place: StreamPlace = StreamPlace()


class TrainFeed:
    """Implements ``core.run.Feed`` over a loader.

    A map-style dataset goes on at any batch without reading those before it. A stream that offers ``state_dict()`` is
    put back by it; any other is read again from the start of its epoch, and must repeat itself.

    Args:
        loader: A ``Loader``, or anything that yields batches and can be iterated once an epoch.
        accumulation: Batches in a group.
        batches_per_epoch: None for data without a length.
        steps_if_unsized: The length of the run, by which progress is measured then.
        draw: Takes the batches of a group from an iterator; may be a user's ``get_batch_samples``.
        seed: Data seed, for a loader that is not ours (ours knows it).
        poll: Called at least every half second while waiting for a loader's workers; what it raises ends the wait.
        finding_place: Entered while the first group after a resume in the middle of an epoch is looked for.
        process: Which of several processes this is; the loader gives its part of the data.
        agree: Whether any process says True. Asked once a step where processes cannot know by themselves whether others
            still have data.
    """

    def __init__(
        self,
        loader: Any,
        accumulation: int,
        batches_per_epoch: int | None,
        *,
        steps_if_unsized: int = 0,
        draw: Draw = take,
        seed: int = 0,
        poll: Callable[[], None] | None = None,
        finding_place: Callable[[], AbstractContextManager[None]] = nullcontext,
        process: ProcessRank = ALONE,
        agree: Callable[[bool], bool] | None = None,
    ) -> None:
        self.loader = loader
        self.accumulation = accumulation
        self.batches_per_epoch = batches_per_epoch
        self.draw = draw
        self.epoch = 0
        self.consumed = 0
        self._seed = loader.seed if isinstance(loader, Loader) else seed
        if poll is not None and isinstance(loader, Loader):
            loader.poll = poll
        self._poll = poll
        self._finding_place = finding_place
        self._process = process
        self._by_index = starts_by_index(loader)
        self._reader = None if self._by_index else StreamReader(loader, self._seed)
        self._samplers = SamplerGenerators(loader) if self._by_index else None
        self._generators_of_all: list[dict[str, Any]] = []
        self._agree = agree if self._facts().split == "itself" else None
        self._ends_with_filler = self._got_filler = self._got_own = False
        self._left_out: dict[int, set[int]] = {}
        self._now = self._before = _Mark(0)
        self._start: Start | None = None
        self._first = Start(0)
        self._starts: dict[int, Start] = {}
        self._after_skip: Callable[[], None] | None = None
        self.epoch_is_over = self._end_was_announced = self._has_said_how = False
        #: Seconds spent on fetching since somebody asked, and when that was.
        self._waited, self._asked = 0.0, perf_counter()
        # Without a length, an "epoch" in the progress display is the whole planned run, as in HF.
        self._denominator = batches_per_epoch or max(steps_if_unsized * accumulation, 1)

    # ---- position

    def position(self, before_last_group: bool = False) -> dict[str, Any]:
        """What ``start_at`` needs to continue from here, as JSON data; ``before_last_group``: from before that group.

        An epoch whose batches are all consumed is not over before its end was announced: a run resumed from its last
        step still has the evaluation at its end to do.
        """
        mark = self._before if before_last_group else self._now
        if self.epoch_is_over:
            mark = _Mark(mark.epoch + 1, place=mark.place.after_epoch())
        self._say_how_it_resumes()
        facts = self._facts(mark.epoch)
        return {
            "epoch": mark.epoch,
            "batches": mark.batches,
            **place_of_all(self.loader, mark.batches, self._first, facts),
            **facts._asdict(),
            **mark.place.as_json(is_own=facts.split == "itself"),
            "left_out": {str(epoch): sorted(numbers) for epoch, numbers in sorted(self._left_out.items()) if numbers},
            "end_was_announced": self._end_was_announced,
            **({"generators": self._generators_of_all} if any(self._generators_of_all) else {}),
        }

    def position_of_all(self, gather: Callable[[Any], list[Any]]) -> dict[str, Any]:
        """As ``position``, with what only the other processes know of theirs; every process must call it."""
        position = self.position()
        if self._by_index or self._process.world_size == 1:
            return position
        own = {name: position[name] for name in StreamPlace._fields}
        return {**position, "of_process": gather(own)}

    def start_at(
        self,
        position: Mapping[str, Any],
        *,
        after_skip: Callable[[], None] | None = None,
        restart_epoch: bool = False,
    ) -> None:
        """Continue at ``position``, or at the start of its epoch.

        ``after_skip`` is called before the first batch is fetched: reading past samples may draw random numbers.
        Raises ``ValueError`` if the data or its settings have changed so that the place cannot be found.
        """
        if self._by_index:
            set_epoch(self.loader, position["epoch"])
        facts = self._facts(position["epoch"])
        position = of_process(position, facts, self._process.rank)
        start = Start(0) if restart_epoch else start_from(position, facts, self.loader)
        self.epoch = position["epoch"]
        for epoch, numbers in left_out_now(position, facts, start).items():
            self.leave_out(epoch, numbers)
        self._start = self._first = self._starts[self.epoch] = start
        self.consumed = start.batches
        stream = None if restart_epoch else position["stream"]
        if not start.batches and not (self._reader and self._reader.state.works):
            # At the start of an epoch any data will do.
            stream = None
        digest = position["last_batch"] if start.is_comparable and start.batches else None
        # Only where each process reads a part of its own may it have read less than it was given.
        read = position.get("read") if facts.split == "itself" and start.batches else None
        own = None if restart_epoch else position.get("own")
        self._now = self._before = _Mark(self.epoch, start.batches, StreamPlace(read, digest, stream, own))
        self._load_generators(position)
        self._after_skip = after_skip
        self.epoch_is_over, self._end_was_announced = False, bool(position.get("end_was_announced"))
        if start.batches and getattr(self.loader, "num_workers", 0) and not getattr(self.loader, "in_order", True):
            logger.warning(
                "dataloader_in_order=False: which batches were consumed is not known exactly, so some samples of epoch "
                "%d may come twice or not at all.",
                self.epoch,
            )

    def share_generators(self, gather: Callable[[Any], list[Any]]) -> None:
        """Before the first batch, in every process: let samplers whose order must be the same draw alike."""
        own = {} if self._samplers is None else self._samplers.to_json()
        every = gather(own)
        # Processes that compute layers together have the same data.
        every = every[:: len(every) // self._process.world_size]
        if self._samplers is not None and self._samplers.are_shared_out and any(every):
            if every[0] != own:
                self._samplers.load(every[0])
            every = every[:1]
        self._generators_of_all = every

    def sampler_generators(self) -> list[Any]:
        """Generators that samplers draw the order from."""
        return [] if self._samplers is None else [g for r in self._samplers.replays for g in r.own.found.values()]

    def _load_generators(self, position: Mapping[str, Any]) -> None:
        every = position.get("generators")
        if self._samplers is not None and every:
            self._samplers.load(every[self._process.rank if self._process.rank < len(every) else 0])

    def leave_out(self, epoch: int, batches: Iterable[int]) -> None:
        """Skip these batches of ``epoch`` when they come; they count as consumed. A resumed run leaves them out too."""
        self._left_out.setdefault(epoch, set()).update(int(number) for number in batches)

    @property
    def last_group(self) -> tuple[int, int]:
        """The numbers of the first and the last batch of the group given last."""
        before, now = self._before.batches, self._now.batches
        left_out = self._left_out.get(self._now.epoch)
        if not left_out:
            return before, now - 1
        # Those of a group that was left out only afterwards are still the group's.
        numbers = [number for number in range(before, now) if number not in left_out] or [before, now - 1]
        return numbers[0], numbers[-1]

    def describe(self, epoch: int, first: int, last: int) -> dict[str, Any]:
        """What the batches from number ``first`` to ``last`` of ``epoch`` are made of.

        ``samples`` is None where that cannot be known: streams, and workers that may deliver out of order.
        """
        return {"epoch": epoch, "batches": [first, last], "samples": self._samples_of(epoch, first, last)}

    def close_epoch(self) -> None:
        self.epoch_is_over = True

    def announce_end(self) -> None:
        self._end_was_announced = True

    def epoch_progress(self) -> float:
        first = self._first
        if first.sample is None:
            return self.epoch + self.consumed / self._denominator
        # Batches before the first had another size, so they are counted by their samples.
        done = first.sample / max(units_in_epoch(self.loader.batch_sampler), 1)
        left, all_left = self._denominator - self.consumed, max(self._denominator - first.batches, 1)
        return self.epoch + 1 - (1 - done) * left / all_left

    def on_last_group(self) -> bool:
        if self.batches_per_epoch is None:
            return False
        return self._next_number(self.consumed) >= self.batches_per_epoch

    def on_filler(self) -> bool:
        return self._got_filler or (self._ends_with_filler and self.on_last_group())

    def steps_left_in_epoch(self) -> int:
        """Optimizer steps from here to the end of the epoch; 0 for data without a length."""
        if self.batches_per_epoch is None:
            return 0
        set_epoch(self.loader, self.epoch)
        whole = self._batches_of_epoch()
        left_out = self._left_out.get(self.epoch, set())
        return math.ceil(sum(number not in left_out for number in range(self.consumed, whole)) / self.accumulation)

    # ---- batches

    def groups(self) -> Iterator[list[Any]]:
        set_epoch(self.loader, self.epoch)
        # In the middle of an epoch the first group may take as long to come as the epoch took up to there.
        with self._finding_place() if self._start is not None and self._start.batches else nullcontext():
            self._begin()
            batches = self._numbered(self._open())
            if self._after_skip is not None:
                self._after_skip()
                self._after_skip = None
            group = self._next_group(batches)
        while group:
            self._before, self._now = self._now, self._mark(has_read=True)
            yield group
            group = self._next_group(batches)
        # The end of a stream is a state of its own, unless it was there from the start.
        is_read = self._reader is not None and self._reader.is_open
        self._now = self._mark(has_read=True) if is_read else self._now._replace(batches=self.consumed)

    def _next_group(self, batches: Iterator[Any]) -> list[Any]:
        self._got_filler = self._got_own = False
        began = perf_counter()
        group = self.draw(batches, self.accumulation)
        self._waited += perf_counter() - began
        if self._agree is None or not self._agree(bool(group)) or group:
            return group
        assert self._reader is not None
        self._got_filler = True
        self.consumed += 1
        return [self._reader.filler()]

    def _begin(self) -> None:
        """Set the counters to where the epoch starts or goes on."""
        if self._start is None:
            self._first = Start(0)
            self._now = self._before = _Mark(self.epoch)
        self._start = None
        self._ends_with_filler = self._by_index and self.loader.batch_sampler.ends_with_filler(self._first.sample)
        self.consumed = self._now.batches
        self.epoch_is_over = self._end_was_announced = False
        if self.batches_per_epoch is not None:
            # Batches by token budget differ in number from epoch to epoch.
            self.batches_per_epoch = self._denominator = self._batches_of_epoch()

    def _batches_of_epoch(self) -> int:
        first = self._first
        if first.sample is None:
            return len(self.loader)
        sampler = self.loader.batch_sampler
        return sampler.cut(first.batches + sampler.batches_after(first.sample))

    def _open(self) -> Iterator[Any]:
        """The batches from the present mark on."""
        mark = self._now
        self._unfetched = frozenset(self._left_out.get(mark.epoch, ())) if self._by_index else frozenset()
        if self._reader is None:
            self.loader.start_at(mark.batches, sample=self._first.sample, leave_out=self._unfetched)
            return iter(self.loader)
        batches = self._reader.open(mark.epoch, mark.place, mark.batches, self._first.slack, self._poll)
        if mark.place.stream is None:
            self._now = self._before = self._mark(has_read=False)
        return batches

    def _numbered(self, batches: Iterator[Any]) -> Iterator[Any]:
        """``batches`` without those left out, counted."""
        number, unfetched = self.consumed, self._unfetched
        left_out = self._left_out.setdefault(self.epoch, set())
        for batch in batches:
            while number in unfetched:
                number += 1
            number += 1
            self.consumed = number
            if number - 1 in left_out:
                continue
            if isinstance(batch, Filler):
                if self._got_own:
                    # Its step has samples of this process, so nothing has to take their place.
                    continue
                self._got_filler, batch = True, batch.batch
            self._got_own = True
            yield batch
        while number in unfetched and (self.batches_per_epoch is None or number < self.batches_per_epoch):
            number += 1
        self.consumed = number

    def _mark(self, *, has_read: bool) -> _Mark:
        """The present place."""
        if self._reader is None:
            return _Mark(self.epoch, self.consumed)
        return _Mark(self.epoch, self.consumed, self._reader.place(has_read=has_read))

    # ---- details

    def take_waiting(self) -> tuple[float, float]:
        """Seconds that training waited for data since this was last asked, and how long ago that was."""
        waited, asked = self._waited, self._asked
        self._waited, self._asked = 0.0, perf_counter()
        return waited, self._asked - asked

    def _next_number(self, number: int) -> int:
        left_out = self._left_out.get(self.epoch)
        while left_out and number in left_out:
            number += 1
        return number

    def _facts(self, epoch: int = 0) -> Facts:
        return facts_of(self.loader, self.accumulation, self._seed, self._process.world_size, epoch)

    def _samples_of(self, epoch: int, first: int, last: int) -> list[Any] | None:
        if not self._by_index or (self.loader.num_workers and not self.loader.in_order):
            return None
        sampler, start = self.loader.batch_sampler, self._starts.get(epoch, Start(0))
        if start.sample is None:
            start = Start(first)
        now = sampler.epoch
        if now != epoch:
            sampler.set_epoch(epoch)
        try:
            batches = islice(
                sampler.numbered(start.batches, start.sample), first - start.batches, last + 1 - start.batches
            )
            return [index for _, batch in batches for index in batch]
        finally:
            if now != epoch:
                sampler.set_epoch(now)

    def _say_how_it_resumes(self) -> None:
        if self._reader is None or self._reader.state.works or self._has_said_how:
            return
        self._has_said_how = True
        reason = self._reader.state.reason
        logger.info("A run resumed in the middle of an epoch will read that epoch again: %s.", reason)
