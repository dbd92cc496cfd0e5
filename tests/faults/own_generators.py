"""Runs whose samplers, datasets, collators and models keep random generators of their own."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, IterableDataset, Sampler, Subset

from tests.faults.runner import Net, rows
from tests.faults.scenarios import Scenario, loader_by
from trainwright import Trainer, TrainerCallback, default_data_collator

COUNT = 22


class Tool:
    """Shuffles and draws with a generator of any library."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def order(self, count: int) -> list[int]:
        if isinstance(self.generator, torch.Generator):
            return torch.randperm(count, generator=self.generator).tolist()
        if isinstance(self.generator, random.Random):
            return self.generator.sample(range(count), count)
        return self.generator.permutation(count).tolist()

    def number(self) -> float:
        if isinstance(self.generator, torch.Generator):
            return float(torch.rand((), generator=self.generator))
        # `gauss` keeps a number for the next call, which is state too.
        return (
            self.generator.gauss(0, 1)
            if isinstance(self.generator, random.Random)
            else float(self.generator.standard_normal())
        )


GENERATORS: dict[str, Callable[[], Any]] = {
    "python": lambda: random.Random(7),
    "numpy": lambda: np.random.default_rng(7),
    "old numpy": lambda: np.random.RandomState(7),
    "philox": lambda: np.random.Generator(np.random.Philox(7)),
    "torch": lambda: torch.Generator().manual_seed(7),
}


# ---- samplers


class Own(Sampler[int]):
    """A fresh order in each pass, from a generator that goes on from pass to pass."""

    def __init__(self, generator: Any) -> None:
        self.tools = {"order": Tool(generator)}

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        return iter(self.tools["order"].order(COUNT))


class OwnKnowingEpochs(Own):
    """Is told the epoch, for something else."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class OwnSetByEpoch(OwnKnowingEpochs):
    """Draws its order when it is told the epoch."""

    def __init__(self, generator: Any) -> None:
        super().__init__(generator)
        self.drawn: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.drawn = self.tools["order"].order(COUNT)

    def __iter__(self) -> Iterator[int]:
        return iter(self.drawn)


class ShuffledInPlace(Sampler[int]):
    """Shuffles the same list again and again: what an epoch sees depends on all epochs before it."""

    def __init__(self, seed: int = 3) -> None:
        self.order, self.rng = list(range(COUNT)), random.Random(seed)

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        self.rng.shuffle(self.order)
        return iter(self.order)


class Counts(Sampler[int]):
    """Begins one sample later in every pass."""

    def __init__(self) -> None:
        self.passes = 0

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return iter([(self.passes + place) % COUNT for place in range(COUNT)])


class GlobalThoughToldEpochs(Sampler[int]):
    """Is told the epoch and draws from Python's own generator all the same."""

    def __len__(self) -> int:
        return COUNT

    def set_epoch(self, epoch: int) -> None: ...

    def __iter__(self) -> Iterator[int]:
        return iter(random.sample(range(COUNT), COUNT))


class OwnBatches(Sampler[list[int]]):
    """A batch sampler with a generator, over a sampler with another."""

    def __init__(self, generator: Any) -> None:
        self.sampler, self.tool = Own(random.Random(5)), Tool(generator)

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[list[int]]:
        order = list(self.sampler)
        batches = [order[start : start + 4] for start in range(0, COUNT, 4)]
        return iter([batches[place] for place in self.tool.order(6)])


# ---- data


class OwnRows:
    """Noise from a generator of its own."""

    def __init__(self, generator: Any, count: int = COUNT) -> None:
        self.rows, self.transforms = rows(COUNT)[:count], [Tool(generator)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {**self.rows[index], "x": self.rows[index]["x"] + 0.1 * self.transforms[0].number()}


_global_rng = np.random.default_rng(11)


class RowsWithGlobal(OwnRows):
    """Draws from a generator that lies beside its class."""

    def __init__(self) -> None:
        super().__init__(None)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {**self.rows[index], "x": self.rows[index]["x"] + 0.1 * _global_rng.normal()}


class OwnCollator:
    """Makes its generator when it is first called, as Hugging Face's masking collator does."""

    rng: np.random.Generator | None = None

    def __call__(self, samples: list[Any]) -> dict[str, Tensor]:
        if self.rng is None:
            self.rng = np.random.default_rng(3)
        batch = default_data_collator(samples)
        return {**batch, "x": batch["x"] * float(self.rng.uniform(0.9, 1.1))}


def closed_over() -> Callable[[list[Any]], dict[str, Tensor]]:
    """A collator whose generator lies in its closure."""
    rng = random.Random(9)

    def collate(samples: list[Any]) -> dict[str, Tensor]:
        batch = default_data_collator(samples)
        return {**batch, "x": batch["x"] * rng.uniform(0.9, 1.1)}

    return collate


def scaled(samples: list[Any], rng: random.Random) -> dict[str, Tensor]:
    batch = default_data_collator(samples)
    return {**batch, "x": batch["x"] * rng.uniform(0.9, 1.1)}


class OwnStream(IterableDataset[Any]):
    """Noise and order from a generator that goes on from epoch to epoch."""

    def __init__(self, generator: Any) -> None:
        self.tool = Tool(generator)

    def __iter__(self) -> Iterator[Any]:
        source = rows(COUNT)
        for index in self.tool.order(COUNT):
            yield {**source[index], "x": source[index]["x"] + 0.1 * self.tool.number()}


class OwnStreamWithState(IterableDataset[Any]):
    """Knows its place and forgets its generator."""

    def __init__(self) -> None:
        self.place, self.rng = 0, np.random.default_rng(2)

    def __iter__(self) -> Iterator[Any]:
        source = rows(COUNT)
        while self.place < COUNT:
            self.place += 1
            yield {**source[self.place - 1], "x": source[self.place - 1]["x"] + 0.1 * self.rng.normal()}
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


# ---- models, and what works on them


class OwnDropout(nn.Module):
    def __init__(self, generator: Any) -> None:
        super().__init__()
        self.tool = Tool(generator)

    def forward(self, x: Tensor) -> Tensor:
        # Also in evaluation: what it draws there moves it on, too.
        if isinstance(self.tool.generator, torch.Generator):
            return x * (torch.rand(x.shape, generator=self.tool.generator) > 0.2)
        return x * (1 + 0.1 * self.tool.number())


class OwnNet(Net):
    """Dropout with a generator of its own, in a submodule."""

    def __init__(self, generator: Any = None) -> None:
        super().__init__()
        self.layers[3] = OwnDropout(generator if generator is not None else GENERATORS["torch"]())


class LateNet(Net):
    """Makes its generator in the first forward pass."""

    generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.generator is None:
            self.generator = torch.Generator().manual_seed(1)
        return super().forward(x * (torch.rand(x.shape, generator=self.generator) > 0.2))


class MixingTrainer(Trainer):
    """Mixes the samples of a batch by a generator of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rng = np.random.default_rng(6)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        share = float(self.rng.beta(0.4, 0.4))
        mixed = {**inputs, "x": share * inputs["x"] + (1 - share) * inputs["x"].flip(0)}
        return super().compute_loss(model, mixed, return_outputs, num_items_in_batch)


class Shaking(TrainerCallback):
    """Shakes a weight after each step."""

    def __init__(self) -> None:
        self.rng = random.Random(4)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        with torch.no_grad():
            kwargs["model"].layers[4].bias += 0.01 * self.rng.gauss(0, 1)


_COPIES = {"dataloader_num_workers": 2}
_CUTS = (6, 9)
#: What the others show too.
_ALIKE = ("numpy", "old numpy", "philox")
_BARE: dict[str, Any] = {"remove_unused_columns": False}

OWN: dict[str, Scenario] = {
    **{
        f"own sampler, {name}": Scenario(
            trainer=loader_by(sampler=lambda data, make=make: Own(make())), cuts=_CUTS, is_full=name in _ALIKE
        )
        for name, make in GENERATORS.items()
    },
    "own sampler, told epochs": Scenario(
        trainer=loader_by(sampler=lambda data: OwnKnowingEpochs(GENERATORS["python"]())), cuts=_CUTS
    ),
    "own sampler, set by epoch": Scenario(
        trainer=loader_by(sampler=lambda data: OwnSetByEpoch(GENERATORS["numpy"]())), cuts=_CUTS
    ),
    "own sampler, shuffled in place": Scenario(trainer=loader_by(sampler=lambda data: ShuffledInPlace()), cuts=(9,)),
    "own sampler, counting": Scenario(trainer=loader_by(sampler=lambda data: Counts()), cuts=(9,)),
    "own sampler, global though told epochs": Scenario(
        trainer=loader_by(sampler=lambda data: GlobalThoughToldEpochs()), cuts=(9,)
    ),
    "own sampler, 2 workers": Scenario(
        _COPIES,
        trainer=loader_by(sampler=lambda data: Own(GENERATORS["torch"]()), num_workers=lambda data: 2),
        cuts=(9,),
    ),
    "own batch sampler": Scenario(
        trainer=loader_by(batch_sampler=lambda data: OwnBatches(GENERATORS["numpy"]())), cuts=(9,)
    ),
    **{
        f"own dataset, {name}": Scenario(data=lambda make=make: OwnRows(make()), cuts=(9,), is_full=name in _ALIKE)
        for name, make in GENERATORS.items()
    },
    "own dataset, 2 workers": Scenario(_COPIES, data=lambda: OwnRows(GENERATORS["numpy"]()), cuts=(9,)),
    "own dataset, wrapped": Scenario(
        data=lambda: ConcatDataset([Subset(OwnRows(random.Random(1)), range(12)), OwnRows(random.Random(2), 10)]),  # type: ignore[list-item,arg-type]
        cuts=(9,),
    ),
    "own dataset, global": Scenario(data=RowsWithGlobal, cuts=(9,)),
    "own collator, made late": Scenario(_BARE, collator=OwnCollator(), cuts=(9,)),
    "own collator, closure": Scenario(_BARE, collator=closed_over(), cuts=(9,)),
    "own collator, partial": Scenario(_BARE, collator=functools.partial(scaled, rng=random.Random(3)), cuts=(9,)),
    "own stream": Scenario(data=lambda: OwnStream(GENERATORS["python"]()), cuts=_CUTS),
    "own stream, one worker": Scenario(
        {"dataloader_num_workers": 1}, data=lambda: OwnStream(GENERATORS["numpy"]()), cuts=(9,)
    ),
    "own stream with a state": Scenario(data=OwnStreamWithState, cuts=_CUTS),
    **{
        f"own model, {name}": Scenario(model=lambda make=make: OwnNet(make()), cuts=_CUTS, is_full=name in _ALIKE)
        for name, make in GENERATORS.items()
    },
    "own trainer": Scenario(trainer=MixingTrainer, cuts=(9,)),
    "own callback": Scenario(callbacks=lambda: [Shaking()], cuts=(9,)),
}

#: What stands in `make test-full` only.
_RARE = {
    "own sampler, counting",
    "own sampler, global though told epochs",
    "own sampler, 2 workers",
    "own dataset, python",
    "own dataset, global",
    "own dataset, 2 workers",
    "own collator, partial",
    "own stream, one worker",
    "own model, python",
    "own trainer",
    "own callback",
}
OWN = {name: dataclasses.replace(one, is_full=one.is_full or name in _RARE) for name, one in OWN.items()}
