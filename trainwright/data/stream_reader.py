"""Reading a stream, and coming back to a place in it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from trainwright.core.filler import Filler
from trainwright.data.first_batches import whole_loader
from trainwright.data.loader import Loader
from trainwright.data.own_data import OwnPlace, StreamGenerators
from trainwright.data.position import Facts, LastBatch
from trainwright.data.seeding import AllStates, StreamRun, plain_states
from trainwright.data.streams import StreamState

logger = logging.getLogger("trainwright")
_END = object()


class StreamPlace(NamedTuple):
    """How far one process has read its stream in an epoch."""

    #: Batches read; less than were given where others had more. None: as many as were given.
    read: int | None = 0
    #: The last of them, or what a checkpoint said of it.
    last_batch: LastBatch | str | None = None
    #: The stream's own state there, if it gives one: ``state``, ``random`` and ``ended``.
    stream: dict[str, Any] | None = None
    #: States of generators that the stream keeps for itself, if it has any; as JSON where they come from a checkpoint.
    own: OwnPlace | dict[str, Any] | None = None

    def as_json(self, *, is_own: bool) -> dict[str, Any]:
        """For a checkpoint; ``is_own``: what this process reads nobody else reads."""
        digest = self.last_batch.digest() if isinstance(self.last_batch, LastBatch) else self.last_batch
        stream = self.stream and {**self.stream, "random": _plain_random(self.stream["random"])}
        own = self.own.to_json() if isinstance(self.own, OwnPlace) else self.own
        return {"read": self.read if is_own else None, "last_batch": digest, "stream": stream, "own": own}

    def after_epoch(self) -> StreamPlace:
        """The start of the next epoch, seen from the end of this one."""
        stream = self.stream and {**self.stream, "random": None, "ended": False}
        own = self.own
        if own is not None:
            own = own.after_epoch() if isinstance(own, OwnPlace) else {"start": own["here"], "here": own["here"]}
        return StreamPlace(stream=stream, own=own)


class StreamReader:
    """Passes over a stream: by its own state where it gives one, else by reading it again up to the place."""

    def __init__(self, loader: Any, seed: int) -> None:
        self._limit: int | None = getattr(loader, "batch_limit", None)
        loader = whole_loader(loader)
        self._loader, self._seed = loader, seed
        self.state = StreamState(loader)
        self._own = StreamGenerators(loader)
        #: Batches given of the epoch, which ends after ``_limit`` of them.
        self._given = 0
        self._run: Any = None
        self._last: Any = None
        self._at_end: StreamPlace | None = None
        self.read = 0

    def open(
        self, epoch: int, place: StreamPlace, given: int, slack: int = 0, poll: Callable[[], None] | None = None
    ) -> Iterator[Any]:
        """The batches after ``place``, before which ``given`` were given; it may be ``slack`` behind the end.

        ``poll`` is called after each batch that is read past, and may raise.
        """
        self._run = self._last = self._at_end = None
        self._given = given
        self.read = given if place.read is None else place.read
        own = place.own if isinstance(place.own, dict) else None
        self._own.begin(own)
        if self._is_cut():
            # The next pass begins at the start of the stream, which must not be told to go on somewhere else.
            if own is not None:
                self._own.go_on(own)
            return iter(())
        if place.stream is not None:
            return self._counted(self._open_by_state(epoch, place.stream, own))
        self._run = self._fresh_run(epoch)
        if self.read:
            self._read_past(epoch, place, slack, poll or (lambda: None))
        return self._counted(self._run)

    @property
    def is_open(self) -> bool:
        """Whether there is a pass; not where the checkpoint said that the epoch was over."""
        return self._run is not None

    def place(self, *, has_read: bool) -> StreamPlace:
        """The present place."""
        if self._at_end is not None:
            # What fillers were made of moved the stream, and is no part of it.
            return self._at_end
        stream = None
        if self.state.works and isinstance(self._run, StreamRun) and not self._is_cut():
            taken = self.state.snapshot(has_read=has_read)
            if taken is not None:
                stream = {"state": taken, "random": self._run.random.snapshot(), "ended": self._run.ended}
        last = None if self._last is None else LastBatch(self._last)
        place = StreamPlace(self.read, last, stream, self._own.place())
        if has_read and isinstance(self._run, StreamRun) and self._run.ended:
            self._at_end = place
        return place

    def filler(self) -> Any:
        """A batch for when this process's part is at its end and others' is not."""
        if isinstance(self._loader, Loader):
            return self._loader.filler()
        if self._last is None:
            raise ValueError(
                f"{type(self._loader).__name__} gave this process no batch and others some: each process must get at "
                "least one."
            )
        return self._last

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        while not self._is_cut() and (batch := next(batches, _END)) is not _END:
            self.read += 1
            self._given += 1
            self._last = batch.batch if isinstance(batch, Filler) else batch
            yield batch

    def _is_cut(self) -> bool:
        return self._limit is not None and self._given >= self._limit

    def _open_by_state(self, epoch: int, stream: dict[str, Any], own: dict[str, Any] | None) -> Iterator[Any]:
        if not self.state.works:
            raise ValueError(
                f"the checkpoint holds the state of a stream that cannot be put back: {self.state.reason}; give the "
                "data as it was, or set ignore_data_skip=True to start the interrupted epoch anew"
            )
        self.state.load(stream["state"])
        if own is not None:
            self._own.go_on(own)
        if stream["ended"]:
            # The next pass belongs to the next epoch.
            return iter(())
        self._run = self._fresh_run(epoch)
        if stream["random"] is not None:
            self._run.random.load(_plain_random(stream["random"]))
        return self._run

    def _fresh_run(self, epoch: int) -> Any:
        """A pass over the stream from its start (or from the state it was given), under random numbers of its own."""
        if isinstance(self._loader, Loader):
            return iter(self._loader)
        return StreamRun(lambda: iter(self._loader), self._seed, epoch)

    def _read_past(self, epoch: int, place: StreamPlace, slack: int, poll: Callable[[], None]) -> None:
        logger.info(
            "Resuming in the middle of epoch %d reads past %d batches first: %s.",
            epoch,
            self.read,
            self.state.reason or "it gave no state when the checkpoint was saved",
        )
        count = 0
        for batch in islice(self._run, self.read):
            self._last = batch.batch if isinstance(batch, Filler) else batch
            count += 1
            poll()
        repeats = count >= self.read - slack
        if repeats and isinstance(place.last_batch, str):
            repeats = LastBatch(self._last).digest() == place.last_batch
        if not repeats:
            raise ValueError(
                f"the training data of epoch {epoch} did not repeat itself: read again, its batch number "
                f"{self.read} is not what it was before the run was interrupted. Give the stream a fixed seed, or "
                "state_dict() and load_state_dict(), to resume it exactly; ignore_data_skip=True goes on without, from "
                "the start of the epoch"
            )


def of_process(position: Mapping[str, Any], now: Facts, rank: int) -> dict[str, Any]:
    """``position`` as the process ``rank`` finds it: each has read a stream, or a part of one, of its own."""
    is_same = position["processes"] == now.processes
    parts: list[dict[str, Any]] | None = position.get("of_process")
    if parts and is_same:
        return {**position, **parts[rank]}
    if is_same and rank == 0:
        return dict(position)
    # What was noted is the first process's, which has had other batches but, where all read the same stream, read the
    # same.
    if "itself" in (position.get("split"), now.split):
        return {**position, "last_batch": None, "read": None, "stream": None, "own": None}
    return {**position, "last_batch": None}


def _plain_random(states: Any) -> Any:
    """Generator states as JSON; those that come from a checkpoint are so already."""
    return plain_states(states) if isinstance(states, AllStates) else states
