"""Random generators that users' objects keep: nothing comes twice, and what cannot be known is said.

That runs with them resume bit for bit is shown in ``test_exactness.py`` ("own ..."), after a real kill in
``test_processes.py``.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from secrets import randbelow
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler

from tests.faults.own_generators import COUNT, OWN, Counts, LateNet, Own, OwnNet, OwnRows, ShuffledInPlace
from tests.faults.runner import Net, rows
from tests.faults.scenarios import loader_by
from tests.faults.test_exactness import build as build_scenario
from tests.faults.test_exactness import straight
from trainwright import Trainer, TrainerCallback, TrainingArguments
from trainwright.config.backends import ProcessRank
from trainwright.data.feed import TrainFeed
from trainwright.data.rebuild import resumable_loader, shared_training
from trainwright.randomness.generators import capture, digest

pytestmark = pytest.mark.filterwarnings("ignore")


def arguments(folder: Path, **extra: Any) -> TrainingArguments:
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 14,
        "per_device_train_batch_size": 4,
        "save_steps": 5,
        "learning_rate": 1e-2,
        "disable_tqdm": True,
        "use_cpu": True,
        "log_level": "error",
        **extra,
    }
    return TrainingArguments(**settings)


def events(folder: Path) -> list[dict[str, Any]]:
    file = folder / "events.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


# ---- what a run that nobody interrupts sees


class Watching(Net):
    """Remembers the rows that it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += x[:, 0].tolist()
        return super().forward(x)


def order_seen(folder: Path, sampler: Any, **extra: Any) -> list[list[int]]:
    """The rows of each epoch of a run of three."""
    model = Watching()
    trainer = loader_by(sampler=lambda data: sampler)(
        model, arguments(folder, max_steps=-1, num_train_epochs=3, **extra), train_dataset=rows(COUNT)
    )
    trainer.train()
    numbers = {round(float(row["x"][0]), 5): place for place, row in enumerate(rows(COUNT))}
    seen = [numbers[round(value, 5)] for value in model.seen]
    return [seen[start : start + COUNT] for start in range(0, len(seen), COUNT)]


def test_the_first_epoch_is_the_samplers_own_and_others_differ(tmp_path: Path) -> None:
    epochs = order_seen(tmp_path, Own(random.Random(5)))
    assert epochs[0] == list(Own(random.Random(5)))
    assert [sorted(epoch) for epoch in epochs] == [list(range(COUNT))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3


@pytest.mark.parametrize("make", [ShuffledInPlace, Counts])
def test_a_sampler_that_remembers_is_passed_once_an_epoch(tmp_path: Path, make: Callable[[], Any]) -> None:
    sampler = make()
    epochs = order_seen(tmp_path, sampler)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    if isinstance(sampler, Counts):
        assert sampler.passes == 3
        assert epochs == [list(each) for twin in [Counts()] for each in (iter(twin), iter(twin), iter(twin))]


@pytest.mark.slow
def test_the_number_of_workers_does_not_change_what_a_dataset_draws(tmp_path: Path) -> None:
    assert straight("own dataset, numpy")[0]["weights"] == straight("own dataset, 2 workers")[0]["weights"]


def test_augmentation_differs_from_epoch_to_epoch(tmp_path: Path) -> None:
    model = Watching()
    args = arguments(tmp_path, max_steps=-1, num_train_epochs=2, train_sampling_strategy="sequential")
    Trainer(model, args, train_dataset=OwnRows(np.random.default_rng(1))).train()
    first, second = model.seen[:COUNT], model.seen[COUNT:]
    assert not set(first) & set(second)


def test_generators_of_data_stay_as_they_are(tmp_path: Path) -> None:
    """Whoever else draws from them does not notice that data is read."""
    sampled, read = random.Random(1), np.random.default_rng(2)
    before = [digest(generator, capture(generator)) for generator in (sampled, read)]
    trainer = loader_by(sampler=lambda data: Own(sampled))(Net(), arguments(tmp_path), train_dataset=OwnRows(read))
    trainer.train()
    assert [digest(generator, capture(generator)) for generator in (sampled, read)] == before


# ---- steps that are undone


class Breaking(OwnNet):
    """Raises once, after it has drawn."""

    def __init__(self, error: Exception | None, at: int = 8) -> None:
        super().__init__()
        self.error, self.at, self.calls = error, at, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        result = super().forward(x)
        if self.error is not None and self.training and self.calls == self.at:
            raise self.error
        return result


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def trained(folder: Path, model: Any, **extra: Any) -> Trainer:
    trainer = Trainer(model, arguments(folder, **extra), train_dataset=rows(COUNT))
    trainer.train(resume_from_checkpoint="auto")
    return trainer


@pytest.mark.slow
def test_an_error_after_a_draw_is_rescued_from_before_it(tmp_path: Path) -> None:
    whole = weights(trained(tmp_path / "whole", Breaking(None)))
    with pytest.raises(RuntimeError, match="out of luck"):
        trained(tmp_path / "broken", Breaking(RuntimeError("out of luck")))
    assert (tmp_path / "broken" / "checkpoint-7").is_dir()
    assert_equal(weights(trained(tmp_path / "broken", Breaking(None))), whole)


class Cuttable(OwnNet):
    """Without BatchNorm, which wants more than one row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[1] = nn.Identity()


@pytest.mark.slow
def test_a_step_that_ran_out_of_memory_draws_the_same_again(tmp_path: Path) -> None:
    """Whether it had drawn before it failed makes no difference."""

    class Failing(Cuttable):
        def __init__(self, *, late: bool) -> None:
            super().__init__()
            self.late, self.has_failed, self.calls = late, False, 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            fails = self.training and not self.has_failed and self.calls > 12 and len(x) > 2
            if fails and not self.late:
                self.has_failed = True
                raise torch.OutOfMemoryError("CUDA out of memory (injected)")
            result = super().forward(x)
            if fails:
                self.has_failed = True
                raise torch.OutOfMemoryError("CUDA out of memory (injected)")
            return result

    ends = []
    for late in (False, True):
        model = Failing(late=late)
        ends.append(weights(trained(tmp_path / str(late), model, micro_batch="auto", save_strategy="no")))
        assert model.has_failed
    assert_equal(*ends)


@pytest.mark.slow
def test_the_look_for_a_batch_that_fits_draws_nothing(tmp_path: Path) -> None:
    ends = [
        weights(trained(tmp_path / str(cut), Cuttable(), micro_batch=cut, save_strategy="no")) for cut in ("auto", None)
    ]
    assert_equal(*ends)


# ---- places that are easily overlooked


class InClass:
    rng = random.Random(4)


class OfThread(threading.local):
    def __init__(self) -> None:
        self.rng = random.Random(1)


_cache: dict[str, random.Random] = {}
_made_late: random.Random | None = None
_of_thread, _beside = OfThread(), SimpleNamespace(rng=random.Random(3))


def from_class() -> float:
    return InClass.rng.random()


def by_helper() -> float:
    return from_class()


def from_cache() -> float:
    return _cache.setdefault("rng", random.Random(9)).random()


def made_late() -> float:
    global _made_late
    _made_late = _made_late or random.Random(8)
    return _made_late.random()


def from_namespace() -> float:
    return _beside.rng.random()


def from_thread() -> float:
    return _of_thread.rng.random()


def closed_over_thread() -> Callable[[], float]:
    local = threading.local()
    local.rng = random.Random(2)

    def draw() -> float:
        return local.rng.random()

    return draw


#: name -> the function that draws, made anew as in a new process
OVERLOOKED: dict[str, Callable[[], Callable[[], float]]] = {
    "a bound method": lambda: random.Random(7).random,
    "a class attribute": lambda: from_class,
    "a helper's class": lambda: by_helper,
    "a cache": lambda: from_cache,
    "a global made late": lambda: made_late,
    "a namespace": lambda: from_namespace,
    "a thread's own": lambda: from_thread,
    "a closed-over thread's own": closed_over_thread,
}


class Drawing(OwnRows):
    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__(None)
        self.draw = draw

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {**self.rows[index], "x": self.rows[index]["x"] + self.draw()}


def begin_anew() -> None:
    """Put everything at the level of this module to where a new process has it."""
    global _made_late
    _made_late = None
    _cache.clear()
    InClass.rng, _beside.rng, _of_thread.rng = random.Random(4), random.Random(3), random.Random(1)


def drawn(folder: Path, make: Callable[[], Callable[[], float]], **extra: Any) -> Trainer:
    begin_anew()
    torch.manual_seed(0)
    trainer = Trainer(Net(), arguments(folder, **{"max_steps": 8, **extra}), train_dataset=Drawing(make()))
    trainer.train(resume_from_checkpoint="auto")
    return trainer


@pytest.mark.parametrize("name", OVERLOOKED)
def test_generators_in_odd_places_go_on_after_a_resume(name: str, tmp_path: Path) -> None:
    whole = drawn(tmp_path, OVERLOOKED[name])
    shutil.rmtree(tmp_path / "checkpoint-8")
    resumed = drawn(tmp_path, OVERLOOKED[name])
    assert resumed.state.global_step == 8
    assert_equal(weights(resumed), weights(whole))
    assert not [event for event in events(tmp_path) if event["kind"] == "not_exact"]


def from_urandom() -> float:
    return os.urandom(1)[0] / 255


def by_urandom() -> float:
    return from_urandom()


def from_system() -> float:
    return random.SystemRandom().random()


ASKING: dict[str, tuple[Callable[[], float], str]] = {
    "secrets": (lambda: secrets.randbelow(100) / 100, "by secrets.randbelow"),
    "imported by name": (lambda: randbelow(100) / 100, "by secrets.randbelow"),
    "os.urandom, in a helper": (by_urandom, "by os.urandom"),
    "random.SystemRandom": (from_system, "by random.SystemRandom"),
    "a clock": (lambda: time.perf_counter_ns() % 997 / 997, "gives another batch each time"),
}


@pytest.mark.parametrize("name", ASKING)
def test_code_that_asks_the_system_or_the_clock_is_named_at_the_start(name: str, tmp_path: Path) -> None:
    draw, words = ASKING[name]
    drawn(tmp_path, lambda: draw, max_steps=1)
    said = [event["message"] for event in events(tmp_path) if event["kind"] == "not_exact"]
    assert len(said) == 1
    assert words in said[0]


def scratch_name() -> str:
    return secrets.token_hex(4)


_numbers = itertools.count()


class Measuring(OwnRows):
    """Asks clock and system for what does not change its samples."""

    def __init__(self) -> None:
        super().__init__(None)
        self.scratch, self.seconds, self.number = scratch_name(), 0.0, next(_numbers)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        began = time.perf_counter()
        sample = self.rows[index]
        self.seconds += time.perf_counter() - began
        return sample


class Timing(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen = (time.time(), secrets.token_hex(4))


def test_clocks_that_measure_and_names_of_files_are_no_reason_to_warn(tmp_path: Path) -> None:
    args = arguments(tmp_path, max_steps=2, exact="require")
    Trainer(Net(), args, train_dataset=Measuring(), callbacks=[Timing()]).train()
    assert not [event for event in events(tmp_path) if event["kind"] == "not_exact"]


# ---- several processes


def test_processes_share_out_one_order_though_nobody_seeded_it() -> None:
    feeds = []
    for rank in range(2):
        loader = DataLoader(range(COUNT), batch_size=4, sampler=Own(random.Random()))  # type: ignore[arg-type]
        place = ProcessRank(rank, rank, 2)
        ours = shared_training(resumable_loader(loader, 0), place, 1)
        feeds.append(TrainFeed(ours, 1, len(ours), process=place))
    told: list[Any] = []
    # The first one's word counts, whatever the other has.
    feeds[0].share_generators(lambda own: [told.append(own) or own] * 2)
    feeds[1].share_generators(lambda own: [told[0], own])
    seen = [[int(i) for group in feed.groups() for batch in group for i in batch] for feed in feeds]
    assert sorted(seen[0] + seen[1]) == list(range(COUNT))


# ---- what cannot be known


class ByTheClock(Sampler[int]):
    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        return iter(random.Random(time.perf_counter_ns()).sample(range(COUNT), COUNT))


class ByTheSystem(Own):
    def __init__(self) -> None:
        super().__init__(random.SystemRandom())


class Endless(Sampler[int]):
    """Told epochs, without a length."""

    def __init__(self) -> None:
        self.rng = random.Random(1)

    def set_epoch(self, epoch: int) -> None: ...

    def __iter__(self) -> Iterator[int]:
        while True:
            yield self.rng.randrange(COUNT)


class Walking(OwnRows):
    """Holds an iterator that every sample moves on."""

    def __init__(self) -> None:
        super().__init__(None)
        self.noise = itertools.cycle([0.0, 0.1, 0.2])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {**self.rows[index], "x": self.rows[index]["x"] + next(self.noise)}


class Clocked(OwnRows):
    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {**self.rows[index], "x": self.rows[index]["x"] + time.perf_counter_ns() % 97}


_shared = torch.Generator().manual_seed(1)

#: name -> the Trainer's class, what it is given, and what is said
UNKNOWN: dict[str, tuple[type[Trainer], dict[str, Any], str]] = {
    "a clock": (loader_by(sampler=lambda data: ByTheClock()), {}, "ByTheClock gives another order each time"),
    "the system": (loader_by(sampler=lambda data: ByTheSystem()), {}, "takes its numbers from the operating system"),
    "no length": (loader_by(sampler=lambda data: Endless()), {}, "Endless.rng goes on from epoch to epoch"),
    "an iterator": (Trainer, {"train_dataset": Walking()}, "dataset.noise: it is an iterator"),
    "one generator for two": (
        loader_by(sampler=lambda data: Own(_shared)),
        {"model": lambda: OwnNet(_shared)},
        "is the generator of the sampler too",
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_known_is_said_at_the_start_or_refused(name: str, tmp_path: Path) -> None:
    kind, given, words = UNKNOWN[name]
    data = given.get("train_dataset", rows(COUNT))

    def train(folder: str, **extra: Any) -> None:
        model = given.get("model", Net)()
        kind(model, arguments(tmp_path / folder, max_steps=3, **extra), train_dataset=data).train()

    train("warned")
    said = [event for event in events(tmp_path / "warned") if event["kind"] == "not_exact"]
    assert len(said) == 1
    assert words in said[0]["message"]
    with pytest.raises(ValueError, match=r"exact='require', and a resume .* would not be exact") as refused:
        train("refused", exact="require")
    assert words in str(refused.value)
    assert not list((tmp_path / "refused").glob("checkpoint-*"))
    train("not saved", save_strategy="no")
    assert not [event for event in events(tmp_path / "not saved") if event["kind"] == "not_exact"]


class Holding(TrainerCallback):
    """Holds on to the Trainer and to its sampler, as callbacks do that turn at something."""

    def __init__(self, sampler: Any) -> None:
        self.sampler, self.trainer = sampler, None


def test_a_callback_may_hold_the_trainer_and_the_sampler(tmp_path: Path) -> None:
    sampler = Own(random.Random(1))
    holding = Holding(sampler)
    trainer = loader_by(sampler=lambda data: sampler)(
        Net(), arguments(tmp_path, exact="require"), train_dataset=OwnRows(random.Random(2)), callbacks=[holding]
    )
    holding.trainer = trainer  # type: ignore[assignment]
    trainer.train()


def test_requiring_exactness_also_tries_the_data(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Clocked .* gives another batch each time"):
        Trainer(Net(), arguments(tmp_path, exact="require"), train_dataset=Clocked(None)).train()


@pytest.mark.parametrize(
    "name", ["own sampler, shuffled in place", "own dataset, wrapped", "own stream", "own model, torch"]
)
def test_what_can_be_known_may_be_required(name: str, tmp_path: Path) -> None:
    build_scenario(OWN[name], tmp_path, max_steps=3, exact="require").train()
    assert not [event for event in events(tmp_path) if event["kind"] == "not_exact"]


def test_a_generator_that_the_first_step_makes_is_named_at_the_first_save(tmp_path: Path) -> None:
    trained(tmp_path, LateNet())
    said = [event["message"] for event in events(tmp_path) if event["kind"] == "not_exact"]
    assert len(said) == 1
    assert "model.generator came only with the first step" in said[0]


def test_a_generator_that_the_checkpoint_does_not_have_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in one that an earlier version saved."""
    trained(tmp_path, Net(), max_steps=5)
    trained(tmp_path, OwnNet(), max_steps=6, log_level="warning")
    assert "the random generator model.layers.3.tool.generator does not go on" in caplog.text
