"""Training data goes on where it stopped, or refuses and says why."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from trainwright.data.batches import FixedBatches, TokenBudgetBatches
from trainwright.data.collators import collate_any
from trainwright.data.exact_json import to_plain
from trainwright.data.feed import TrainFeed
from trainwright.data.loader import Loader, has_length
from trainwright.data.order import RandomOrder

Make = Callable[[], Any]
EPOCHS = 3


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": index, "noise": random.random() + torch.rand(()).item()}


class Stream(IterableDataset[Any]):
    """Draws while it is read, from a buffer on the global generators."""

    def __init__(self, n: int = 22) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        buffer: list[int] = []
        for row in range(info.id, self.n, info.num_workers) if info else range(self.n):
            buffer.append(row)
            if len(buffer) > 3:
                yield {"x": buffer.pop(random.randrange(4)), "noise": np.random.rand()}
        yield from ({"x": row, "noise": torch.rand(()).item()} for row in buffer)


class Stateful(IterableDataset[Any]):
    """Knows where it is, and counts its epochs by itself."""

    def __init__(self, n: int = 22) -> None:
        self.n = n
        self.place = 0
        self.passes = 0
        self.read: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        while self.place < self.n:
            self.place += 1
            self.read.append(self.place - 1)
            yield {"x": self.place - 1 + 100 * self.passes, "noise": random.random() + np.random.rand()}
        self.place = 0
        self.passes += 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": (self.place, self.passes)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place, self.passes = state["at"]


def hugging_face(change: Callable[[Any], Any]) -> Make:
    def make() -> Any:
        import datasets

        rows = datasets.Dataset.from_dict({"x": list(range(22))}).to_iterable_dataset(num_shards=3)
        return Loader(change(rows), seed=1, batch_size=4, collate_fn=collate_any)

    return make


def with_noise(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": row["x"], "noise": random.random() + np.random.rand()}


def doubled(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {"x": [x for x in rows["x"] for _ in range(2)]}


class StatefulLoader:
    """In the way of torchdata's StatefulDataLoader: the loader holds the state."""

    def __init__(self) -> None:
        self.order = torch.Generator().manual_seed(4)
        self.start: Any = None
        self.given = 0
        self._at_start = self.order.get_state()

    def __iter__(self) -> Iterator[Any]:
        if self.start is not None:
            self.order.set_state(self.start["generator"])
            self.given = self.start["given"]
            self.start = None
        else:
            self.given = 0
        self._at_start = self.order.get_state()
        rows = torch.randperm(23, generator=self.order).split(4)
        while self.given < len(rows):
            self.given += 1
            yield {"x": rows[self.given - 1], "noise": random.random()}
        self.given, self._at_start = 0, self.order.get_state()

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._at_start, "given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state


class OwnKind(DataLoader[Any]):
    pass


def interleaved(rows: Any) -> Any:
    import datasets

    return datasets.interleave_datasets([rows, rows.map(lambda row: {"x": row["x"] + 100})])


MAKERS: dict[str, Make] = {
    "map": lambda: Loader(Rows(), batch_sampler=FixedBatches(RandomOrder(23, 1), 4), collate_fn=collate_any),
    "map, workers": lambda: Loader(
        Rows(), batch_sampler=FixedBatches(RandomOrder(23, 1), 4), collate_fn=collate_any, num_workers=1
    ),
    "map, budget": lambda: Loader(
        Rows(),
        batch_sampler=TokenBudgetBatches(RandomOrder(23, 1), [1 + i % 5 for i in range(23)], 12, 1),
        collate_fn=collate_any,
    ),
    "iterable": lambda: Loader(Stream(), seed=1, batch_size=4, collate_fn=collate_any),
    "iterable, workers": lambda: Loader(
        Stream(), seed=1, batch_size=4, collate_fn=collate_any, num_workers=2, persistent_workers=True
    ),
    "stateful": lambda: Loader(Stateful(), seed=1, batch_size=4, collate_fn=collate_any),
    "stateful, even": lambda: Loader(Stateful(24), seed=1, batch_size=4, collate_fn=collate_any),
    "stateful, drop last": lambda: Loader(Stateful(), seed=1, batch_size=4, collate_fn=collate_any, drop_last=True),
    "stateful loader": StatefulLoader,
    "loader of its own kind": lambda: OwnKind(Rows(), batch_size=4, shuffle=True, collate_fn=collate_any),
    "streaming": hugging_face(lambda rows: rows),
    "streaming, mapped": hugging_face(lambda rows: rows.map(with_noise)),
    "streaming, filtered": hugging_face(lambda rows: rows.filter(lambda row: row["x"] % 3 > 0).map(with_noise)),
    "streaming, batched map": hugging_face(lambda rows: rows.map(doubled, batched=True, batch_size=3)),
    "streaming, torch": hugging_face(lambda rows: rows.with_format("torch")),
    "streaming, interleaved": hugging_face(interleaved),
    "streaming, shuffled": hugging_face(lambda rows: rows.shuffle(seed=5, buffer_size=6).map(with_noise)),
    "streaming, part": hugging_face(lambda rows: rows.skip(3).take(17)),
}
BY_STATE = {name for name in MAKERS if name.startswith(("stateful", "streaming"))} - {"streaming, shuffled"}


def feed_over(loader: Any, accumulation: int = 2) -> TrainFeed:
    return TrainFeed(loader, accumulation, len(loader) if has_length(loader) else None, steps_if_unsized=9)


def train(feed: TrainFeed, epochs: int = EPOCHS) -> Iterator[tuple[list[Any], dict[str, Any], dict[str, Any]]]:
    """Groups as a loop takes them, each with the position after it and before it, as a checkpoint would hold them."""
    while feed.epoch < epochs:
        for group in feed.groups():
            random.random(), np.random.rand(), torch.rand(1)  # the model draws in between
            places = feed.position(), feed.position(before_last_group=True)
            yield to_plain(group), *json.loads(json.dumps(places))
        feed.close_epoch()
        yield ["epoch is over"], json.loads(json.dumps(feed.position())), {}
        feed.epoch += 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_the_rest_is_the_same_from_every_position(kind: str) -> None:
    whole = list(train(feed_over(MAKERS[kind]())))
    groups = [group for group, _, _ in whole]
    assert len({str(group) for group in groups}) == len(groups) - EPOCHS + 1 or "streaming" in kind
    stops = range(len(whole)) if "workers" not in kind else range(1, len(whole), 4)
    for stop in stops:
        _, after, before = whole[stop]
        for position, rest in ((after, groups[stop + 1 :]), (before, groups[stop:])):
            if not position:
                continue
            random.seed(stop)
            feed = feed_over(loader := MAKERS[kind]())
            feed.start_at(position)
            assert feed.position() == position
            wanted = len(rest) if "workers" not in kind else 4
            assert [group for group, _, _ in _first(train(feed), wanted)] == rest[:wanted], (stop, position)
            if isinstance(loader, Loader):
                loader.close()


def _first(items: Iterator[Any], count: int) -> list[Any]:
    found = []
    for item in items:
        found.append(item)
        if len(found) >= count:
            break
    return found


@pytest.mark.parametrize("kind", MAKERS)
def test_a_stream_says_how_it_resumes(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trainwright")
    feed = feed_over(loader := MAKERS[kind]())
    groups = feed.groups()
    next(groups)
    position = feed.position()
    feed.position()
    counts = kind in ("iterable", "iterable, workers", "loader of its own kind", "streaming, shuffled")
    assert caplog.text.count("will read that epoch again") == counts
    assert (position["stream"] is not None) == (kind in BY_STATE)
    assert (position["last_batch"] is None) == kind.startswith("map")
    again = feed_over(other := MAKERS[kind]())
    again.start_at(position)
    next(again.groups())
    assert ("reads past 2 batches first" in caplog.text) == counts
    for used in (loader, other):
        if isinstance(used, Loader):
            used.close()


def test_a_stateful_stream_is_not_read_again() -> None:
    feed = feed_over(Loader(Stateful(), batch_size=4, collate_fn=collate_any))
    for place, _ in enumerate(feed.groups()):
        if place == 1:
            break
    data = Stateful()
    again = feed_over(Loader(data, batch_size=4, collate_fn=collate_any))
    again.start_at(feed.position())
    next(again.groups())
    assert data.read[0] == 16


def test_a_second_training_on_the_same_streaming_dataset_starts_at_its_start() -> None:
    loader = MAKERS["streaming"]()
    whole = [group for group, _, _ in train(feed_over(loader), 1)]
    feed = feed_over(loader)
    next(feed.groups())
    again = feed_over(loader)
    again.start_at(feed.position())
    assert [group for group, _, _ in train(again, 1)] == whole[1:]
    assert [group for group, _, _ in train(feed_over(loader), 1)] == whole


def test_a_state_that_json_cannot_hold_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(Stateful):
        def state_dict(self) -> dict[str, Any]:
            return {"random": random.Random(1)}

    caplog.set_level(logging.INFO, "trainwright")

    def make() -> TrainFeed:
        return feed_over(Loader(Odd(), batch_size=4, collate_fn=collate_any))

    whole = list(train(make(), 1))
    assert caplog.text.count("cannot be kept as JSON (a Random has no plain form)") == 1
    again = make()
    again.start_at(whole[0][1])
    assert [group for group, _, _ in train(again, 1)] == [group for group, _, _ in whole[1:]]


def test_a_stream_that_does_not_repeat_itself_is_refused() -> None:
    class Fresh(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(np.random.default_rng().random(20).tolist())

    def make(stream: Any) -> TrainFeed:
        return feed_over(Loader(stream, batch_size=4, collate_fn=collate_any))

    feed = make(Fresh())
    next(feed.groups())
    position = feed.position()
    again = make(Fresh())
    again.start_at(position)
    with pytest.raises(ValueError, match=r"did not repeat itself.*state_dict\(\).*ignore_data_skip=True"):
        next(again.groups())
    anyway = make(Fresh())
    anyway.start_at(position, restart_epoch=True)
    assert len(list(anyway.groups())) == 3
    shorter = make(Stream(3))
    shorter.start_at({**make_position(Stream()), "batches": 5})
    with pytest.raises(ValueError, match="did not repeat itself"):
        next(shorter.groups())


def make_position(stream: Any) -> dict[str, Any]:
    feed = feed_over(Loader(stream, batch_size=4, collate_fn=collate_any))
    next(feed.groups())
    return feed.position()


def test_a_batch_changed_by_the_model_is_not_held_against_the_stream() -> None:
    def make() -> TrainFeed:
        return feed_over(Loader(Stream(), batch_size=4, collate_fn=collate_any))

    for spoil in (lambda batch: batch["noise"].add_(1), lambda batch: batch.pop("x")):
        feed = make()
        groups = feed.groups()
        spoil(next(groups)[-1])
        again = make()
        again.start_at(feed.position())
        assert to_plain(next(again.groups())) == to_plain(next(groups))
