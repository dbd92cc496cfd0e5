"""Random generators that samplers and streams of the user's keep for themselves, and what cannot be known of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from trainwright.data.batches import ReplayedBatches, TokenBudgetBatches
from trainwright.data.composing import ComposedOrder
from trainwright.data.loader import Loader
from trainwright.data.order import SeededOrder
from trainwright.data.replay import Habit, Replay
from trainwright.data.sharded_batches import ShardedBatches
from trainwright.data.sharding import ShardedOrder, ShardedRows
from trainwright.randomness.own_generators import OwnGenerators, States, look

logger = logging.getLogger("trainwright")


class SamplerGenerators:
    """Generators of the samplers behind a loader whose data has an index.

    Between two passes they rest in the state from which every epoch's follows, so this is all that a checkpoint holds.
    """

    def __init__(self, loader: Any) -> None:
        self._batches = loader.batch_sampler
        self.replays = list(_replays(self._batches))

    def to_json(self) -> dict[str, Any]:
        """The states in which they rest."""
        found: dict[str, Any] = {}
        for name, replay in self._named():
            replay.own.look_again()
            found |= {f"{name}{path}": state for path, state in replay.own.to_json(replay.own.capture()).items()}
        return found

    def load(self, stored: Mapping[str, Any]) -> None:
        """Let them rest in the states of a checkpoint, or of another process."""
        for name, replay in self._named():
            say_what_is_wrong(replay.load({p.removeprefix(name): s for p, s in stored.items() if p.startswith(name)}))
        for batches in _parts(self._batches):
            if isinstance(batches, TokenBudgetBatches):
                batches.forget()

    def _named(self) -> Iterator[tuple[str, Replay]]:
        for number, replay in enumerate(self.replays):
            yield f"{number}.", replay

    @property
    def are_shared_out(self) -> bool:
        """Return True when every process has to come to the same order, of which each takes its part."""
        return any(isinstance(part, (ShardedBatches, ShardedOrder)) for part in _parts(self._batches))


class OwnPlace(NamedTuple):
    """States of a stream's generators at the start of its epoch and at some place in it."""

    own: OwnGenerators
    start: States
    here: States

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"start": self.own.to_json(self.start), "here": self.own.to_json(self.here)}

    def after_epoch(self) -> OwnPlace:
        """The start of the next epoch, if this place is the end of one."""
        return OwnPlace(self.own, self.here, self.here)


class StreamGenerators:
    """Generators of a stream, which go on from sample to sample and from epoch to epoch."""

    def __init__(self, loader: object) -> None:
        self._own = OwnGenerators(lambda: stream_roots(loader))
        self._start: States = {}

    def begin(self, stored: Mapping[str, Any] | None = None) -> None:
        """At the start of an epoch, or of the epoch that a checkpoint's states are of."""
        self._own.look_again()
        if stored is not None:
            self._load(stored["start"])
        self._start = self._own.capture()

    def go_on(self, stored: Mapping[str, Any]) -> None:
        """From the start of the epoch to the place in it that a checkpoint's states are of."""
        self._load(stored["here"])

    def place(self) -> OwnPlace | None:
        """The present place; None where there are none."""
        return OwnPlace(self._own, self._start, self._own.capture()) if self._own.found else None

    def _load(self, states: Mapping[str, Any]) -> None:
        say_what_is_wrong(self._own.load(states))


def say_what_is_wrong(wrong: Mapping[str, str]) -> None:
    """Name the generators that do not go on where the checkpoint's were."""
    for path, reason in wrong.items():
        logger.warning("Resuming is not exact: the random generator %s does not go on, %s.", path, reason)


def stream_roots(loader: object) -> dict[str, Any]:
    """Objects of the user's that take part in reading a stream."""
    if isinstance(loader, Loader):
        return {"dataset": loader.stream_source, "collator": loader.collate_fn}
    return {"loader": loader}


def _parts(batches: object) -> Iterator[Any]:
    """A batch sampler of ours and all that lies in it, down to the user's."""
    yield batches
    inner = None
    if isinstance(batches, ShardedBatches):
        inner = batches.batches
    elif isinstance(batches, (ShardedOrder, ShardedRows)):
        inner = batches.order
    elif not isinstance(batches, (SeededOrder, ReplayedBatches, ComposedOrder)):
        inner = getattr(batches, "sampler", None)
    if inner is not None and inner is not batches:
        yield from _parts(inner)


def _replays(batches: object) -> Iterator[Replay]:
    for part in _parts(batches):
        if isinstance(part, (SeededOrder, ReplayedBatches)):
            yield part.replay
        elif isinstance(part, ComposedOrder):
            yield from part.replays


# ---- what a resume cannot bring back


def unknown_in(loader: Any, *, by_index: bool) -> list[str]:
    """Why data of ``loader`` may not come again as it was, one sentence for each reason."""
    found: list[str] = []
    if by_index:
        for replay in _replays(loader.batch_sampler):
            found += _unknown_of_sampler(replay)
        last = list(_parts(loader.batch_sampler))[-1]
        found += _unknown_if_endless(last)
        found += _said(look({"dataset": loader.dataset, "collator": loader.collate_fn}, calls=True).unknown)
    else:
        roots = stream_roots(loader)
        found += _said(look(roots, iterators=not _gives_state(roots), calls=True).unknown)
    if getattr(loader, "num_workers", 0) and not getattr(loader, "in_order", True):
        found.append("dataloader_in_order=False: which batches were consumed is not known exactly; leave it at True")
    if (
        not isinstance(loader, Loader)
        and getattr(loader, "num_workers", 0)
        and callable(getattr(loader, "state_dict", 0))
    ):
        found.append(
            f"the state of {type(loader).__name__} does not hold the random numbers of its workers: draw none in the "
            "dataset, or use dataloader_num_workers=0"
        )
    return found


def may_ask_the_clock(loader: Any) -> bool:
    """Return True when code behind a loader by index names a clock, by which it may draw or only measure."""
    return bool(look({"dataset": loader.dataset, "collator": loader.collate_fn}, calls=True).clocks)


def _unknown_of_sampler(replay: Replay) -> list[str]:
    name = type(replay.source).__name__
    if replay.habit is Habit.UNREPEATABLE:
        return [
            f"{name} gives another order each time it is asked for the same one, by the clock or the operating "
            "system's random numbers: draw from a generator with a seed"
        ]
    return _said({path.replace("sampler", name, 1): why for path, why in replay.own.unknown.items()})


def _unknown_if_endless(sampler: object) -> list[str]:
    """A sampler that is told epochs but has no length is walked as it is."""
    if hasattr(sampler, "__len__") or not callable(getattr(sampler, "set_epoch", None)):
        return []
    held = look({type(sampler).__name__: sampler}).generators
    return [
        f"{path} goes on from epoch to epoch: seed it in set_epoch(epoch), or give the sampler a __len__"
        for path in held
    ]


def _said(unknown: Mapping[str, str]) -> list[str]:
    return [
        f"{path}: {reason}; draw from random.Random, numpy or torch generators instead"
        for path, reason in unknown.items()
    ]


def _gives_state(roots: Mapping[str, Any]) -> bool:
    """Return True when a stream says itself how far it was read."""
    return any(callable(getattr(root, "state_dict", None)) for root in roots.values())
