"""Training batches grouped by optimizer step, where in the data they stand, and how to go on from there."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from trainwright.data.batches import FixedBatches
from trainwright.data.loader import Loader
from trainwright.data.order import set_epoch_of
from trainwright.data.position import (
    LastBatch,
    Start,
    facts_of,
    recut,
    samples_before,
    start_from,
    starts_by_index,
)
from trainwright.data.seeding import AllStates, StreamRun, plain_states
from trainwright.data.streams import StreamState

logger = logging.getLogger("trainwright")

Draw = Callable[[Iterator[Any], int], list[Any]]


def take(iterator: Iterator[Any], count: int) -> list[Any]:
    """The next ``count`` batches, fewer at the end."""
    return list(islice(iterator, count))


class _Mark(NamedTuple):
    """A place between two groups."""

    epoch: int
    batches: int = 0
    #: The last batch before it, or what a checkpoint said of it; streams only.
    last_batch: LastBatch | str | None = None
    #: The stream's own state there, if it gives one: ``state``, ``random`` and ``ended``.
    stream: dict[str, Any] | None = None


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
        self._by_index = starts_by_index(loader)
        self._ends_with_filler = getattr(getattr(loader, "batch_sampler", None), "ends_with_filler", False)
        self._state = None if self._by_index else StreamState(loader)
        self._left_out: dict[int, set[int]] = {}
        self._now = self._before = _Mark(0)
        self._start: Start | None = None
        self._first = Start(0)
        self._starts: dict[int, Start] = {}
        self._after_skip: Callable[[], None] | None = None
        self.epoch_is_over = self._end_was_announced = self._has_said_how = False
        self._run: Any = None
        self._raw: Any = None
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
            stream = mark.stream and {**mark.stream, "random": None, "ended": False}
            mark = _Mark(mark.epoch + 1, stream=stream)
        digest = mark.last_batch.digest() if isinstance(mark.last_batch, LastBatch) else mark.last_batch
        self._say_how_it_resumes()
        return {
            "epoch": mark.epoch,
            "batches": mark.batches,
            "samples": self._samples_before(mark.batches),
            **facts_of(self.loader, self.accumulation, self._seed)._asdict(),
            "last_batch": digest,
            "stream": mark.stream and {**mark.stream, "random": _plain_random(mark.stream["random"])},
            "left_out": {str(epoch): sorted(numbers) for epoch, numbers in sorted(self._left_out.items()) if numbers},
            "end_was_announced": self._end_was_announced,
        }

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
        start = Start(0)
        if not restart_epoch:
            start = start_from(position, facts_of(self.loader, self.accumulation, self._seed), self.loader)
        self.epoch = position["epoch"]
        self._restore_left_out(position, start)
        self._start = self._first = self._starts[self.epoch] = start
        self.consumed = start.batches
        stream = None if restart_epoch else position["stream"]
        if not start.batches and not (self._state and self._state.works):
            # At the start of an epoch any data will do.
            stream = None
        digest = position["last_batch"] if start.is_comparable and start.batches else None
        self._now = self._before = _Mark(self.epoch, start.batches, digest, stream)
        self._after_skip = after_skip
        self.epoch_is_over, self._end_was_announced = False, bool(position.get("end_was_announced"))
        if start.batches and getattr(self.loader, "num_workers", 0) and not getattr(self.loader, "in_order", True):
            logger.warning(
                "dataloader_in_order=False: which batches were consumed is not known exactly, so some samples of epoch "
                "%d may come twice or not at all.",
                self.epoch,
            )

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
        done = first.sample / max(len(self.loader.batch_sampler.sampler), 1)
        left, all_left = self._denominator - self.consumed, max(self._denominator - first.batches, 1)
        return self.epoch + 1 - (1 - done) * left / all_left

    def on_last_group(self) -> bool:
        if self.batches_per_epoch is None:
            return False
        return self._next_number(self.consumed) >= self.batches_per_epoch

    def on_filler(self) -> bool:
        return self._ends_with_filler and self.on_last_group()

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
        self._begin()
        batches = self._numbered(self._open())
        if self._after_skip is not None:
            self._after_skip()
            self._after_skip = None
        while group := self.draw(batches, self.accumulation):
            self._before, self._now = self._now, self._mark(has_read=True)
            yield group
        # The end of a stream is a state of its own, unless it was there from the start.
        self._now = self._now._replace(batches=self.consumed) if self._run is None else self._mark(has_read=True)

    def _begin(self) -> None:
        """Set the counters to where the epoch starts or goes on."""
        if self._start is None:
            self._first = Start(0)
            self._now = self._before = _Mark(self.epoch)
        self._start = self._raw = None
        self.consumed = self._now.batches
        self.epoch_is_over = self._end_was_announced = False
        if self.batches_per_epoch is not None:
            # Batches by token budget differ in number from epoch to epoch.
            self.batches_per_epoch = self._denominator = self._batches_of_epoch()

    def _batches_of_epoch(self) -> int:
        first = self._first
        if first.sample is None:
            return len(self.loader)
        return first.batches + self.loader.batch_sampler.batches_after(first.sample)

    def _open(self) -> Iterator[Any]:
        """The batches from the present mark on."""
        mark, self._run = self._now, None
        if self._by_index:
            left_out = frozenset(self._left_out.get(mark.epoch, ()))
            self.loader.start_at(mark.batches, sample=self._first.sample, leave_out=left_out)
            self._unfetched = left_out
            return iter(self.loader)
        self._unfetched = frozenset()
        if mark.stream is not None:
            return self._open_by_state(mark.stream)
        self._run = self._fresh_run()
        if mark.batches:
            self._read_past(mark)
        self._now = self._before = self._mark(has_read=False)
        return self._run

    def _open_by_state(self, stream: dict[str, Any]) -> Iterator[Any]:
        assert self._state is not None
        if not self._state.works:
            raise ValueError(
                f"the checkpoint holds the state of a stream that cannot be put back: {self._state.reason}; give the "
                "data as it was, or set ignore_data_skip=True to start the interrupted epoch anew"
            )
        self._state.load(stream["state"])
        if stream["ended"]:
            # The next pass belongs to the next epoch.
            return iter(())
        self._run = self._fresh_run()
        if stream["random"] is not None:
            self._run.random.load(_plain_random(stream["random"]))
        return self._run

    def _fresh_run(self) -> Any:
        """A pass over the stream from its start (or from the state it was given), under random numbers of its own."""
        if isinstance(self.loader, Loader):
            return iter(self.loader)
        return StreamRun(lambda: iter(self.loader), self._seed, self.epoch)

    def _read_past(self, mark: _Mark) -> None:
        assert self._state is not None
        logger.info(
            "Resuming in the middle of epoch %d reads past %d batches first: %s.",
            mark.epoch,
            mark.batches,
            self._state.reason or "it gave no state when the checkpoint was saved",
        )
        count = 0
        for batch in islice(self._run, mark.batches):
            self._raw = batch
            count += 1
        repeats = count == mark.batches
        if repeats and isinstance(mark.last_batch, str):
            repeats = LastBatch(self._raw).digest() == mark.last_batch
        if not repeats:
            raise ValueError(
                f"the training data of epoch {mark.epoch} did not repeat itself: read again, its batch number "
                f"{mark.batches} is not what it was before the run was interrupted. Give the stream a fixed seed, or "
                "state_dict() and load_state_dict(), to resume it exactly; ignore_data_skip=True goes on without, from "
                "the start of the epoch"
            )

    def _numbered(self, batches: Iterator[Any]) -> Iterator[Any]:
        """``batches`` without those left out, counted."""
        number, unfetched = self.consumed, self._unfetched
        left_out = self._left_out.setdefault(self.epoch, set())
        for batch in batches:
            while number in unfetched:
                number += 1
            self._raw = batch
            number += 1
            self.consumed = number
            if number - 1 not in left_out:
                yield batch
        while number in unfetched and (self.batches_per_epoch is None or number < self.batches_per_epoch):
            number += 1
        self.consumed = number

    def _mark(self, *, has_read: bool) -> _Mark:
        """The present place."""
        state = self._state
        if state is None:
            return _Mark(self.epoch, self.consumed)
        stream = None
        if state.works and isinstance(self._run, StreamRun):
            taken = state.snapshot(has_read=has_read)
            if taken is not None:
                stream = {"state": taken, "random": self._run.random.snapshot(), "ended": self._run.ended}
        last = None if self._raw is None else LastBatch(self._raw)
        return _Mark(self.epoch, self.consumed, last, stream)

    # ---- details

    def _next_number(self, number: int) -> int:
        left_out = self._left_out.get(self.epoch)
        while left_out and number in left_out:
            number += 1
        return number

    def _samples_before(self, batches: int) -> int | None:
        sampler = getattr(self.loader, "batch_sampler", None)
        if not self._by_index or not isinstance(sampler, FixedBatches):
            return None
        first = self._first
        if first.sample is None or batches < first.batches:
            return samples_before(sampler, batches)
        return min(first.sample + (batches - first.batches) * sampler.batch_size, len(sampler.sampler))

    def _samples_of(self, epoch: int, first: int, last: int) -> list[Any] | None:
        if not self._by_index or (self.loader.num_workers and not self.loader.in_order):
            return None
        sampler, start = self.loader.batch_sampler, self._starts.get(epoch, Start(0))
        sample = start.sample
        if sample is not None:
            sample += (first - start.batches) * sampler.batch_size
        now = sampler.epoch
        if now != epoch:
            sampler.set_epoch(epoch)
        try:
            return [index for _, batch in islice(sampler.numbered(first, sample), last - first + 1) for index in batch]
        finally:
            if now != epoch:
                sampler.set_epoch(now)

    def _restore_left_out(self, position: Mapping[str, Any], start: Start) -> None:
        """Join what the checkpoint leaves out to what was left out since."""
        old, new = position["batch_size"], facts_of(self.loader, self.accumulation, self._seed).batch_size
        for epoch, numbers in position["left_out"].items():
            chosen = set(numbers)
            if old and new and old != new:
                is_current = int(epoch) == position["epoch"] and position["samples"] is not None
                old_zero = position["samples"] - position["batches"] * old if is_current else 0
                new_zero = position["samples"] - start.batches * new if is_current else 0
                # Rather a few good samples too many than a bad one.
                chosen = recut(chosen, old, new, old_zero - new_zero)
            self._left_out.setdefault(int(epoch), set()).update(chosen)

    def _say_how_it_resumes(self) -> None:
        if self._state is None or self._state.works or self._has_said_how:
            return
        self._has_said_how = True
        logger.info("A run resumed in the middle of an epoch will read that epoch again: %s.", self._state.reason)


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell whatever in ``loader`` shuffles by epoch which epoch it is; ours passes it on by itself."""
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)
        return
    for part in ("batch_sampler", "sampler", "dataset"):
        set_epoch_of(getattr(loader, part, None), epoch)


def _plain_random(states: Any) -> Any:
    """Generator states as JSON; those that come from a checkpoint are so already."""
    return plain_states(states) if isinstance(states, AllStates) else states
