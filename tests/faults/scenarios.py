"""What the exactness matrix trains: models, data, loaders and callbacks that each have something to lose."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler, WeightedRandomSampler

from tests.faults.runner import Net, rows
from trainwright import EarlyStoppingCallback, SchedulerType, Trainer, TrainerCallback
from trainwright.core.state import ExportableState
from trainwright.engines.torch.ema import EMACallback

# ---- models


class Words(nn.Module):
    """Rows of any length, batches of any size; counts its parameters, so floating point operations are counted too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words = nn.Embedding(16, 6, padding_idx=0)
        self.head = nn.Sequential(nn.LayerNorm(6), nn.Dropout(0.2), nn.Linear(6, 3))

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.words(input_ids).mean(1))

    def num_parameters(self, exclude_embeddings: bool = False) -> int:
        return sum(p.numel() for p in self.head.parameters()) + (0 if exclude_embeddings else self.words.weight.numel())


# ---- data with an index


def sentences() -> list[dict[str, Any]]:
    chosen = random.Random(5)
    return [
        {"input_ids": [chosen.randrange(1, 16) for _ in range(chosen.randrange(2, 9))], "labels": chosen.randrange(3)}
        for _ in range(40)
    ]


def padded(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    longest = max(len(sample["input_ids"]) for sample in samples)
    ids = [sample["input_ids"] + [0] * (longest - len(sample["input_ids"])) for sample in samples]
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor([sample["labels"] for sample in samples])}


class Augmented:
    """Each sample is changed by what all three generators say."""

    def __init__(self) -> None:
        self.rows = rows()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = self.rows[index]
        scale = 1 + 0.1 * random.random() + 0.1 * float(np.random.rand())
        return {"x": row["x"] * scale + 0.1 * torch.randn(6), "labels": row["labels"]}


def masked(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Hides a share of the inputs at random, as masked language modelling does with tokens."""
    x = torch.stack([sample["x"] for sample in samples])
    x = torch.where(torch.rand(x.shape) < 0.15 + 0.1 * random.random(), torch.zeros(()), x)
    return {"x": x, "labels": torch.stack([sample["labels"] for sample in samples])}


# ---- loaders people build themselves


class Unseeded(Sampler[int]):
    """An order drawn from Python's own generator, without a seed."""

    def __len__(self) -> int:
        return 22

    def __iter__(self) -> Iterator[int]:
        return iter(random.sample(range(22), 22))


class UnevenBatches(Sampler[list[int]]):
    """Batches of 3 and 5 in turn, shuffled by numpy."""

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.permutation(22).tolist()
        sizes = [3, 5, 3, 5, 3, 3]
        return iter([order[sum(sizes[:i]) : sum(sizes[: i + 1])] for i in range(6)])


def with_loader(make: Callable[[Any], DataLoader[Any]]) -> type[Trainer]:
    class OwnLoader(Trainer):
        def get_train_dataloader(self) -> Any:
            return make(self)

    return OwnLoader


def loader_by(**options: Callable[[Any], Any]) -> type[Trainer]:
    def make(trainer: Any) -> DataLoader[Any]:
        made: dict[str, Any] = {name: option(trainer.train_dataset) for name, option in options.items()}
        if "batch_sampler" not in made:
            made["batch_size"] = 4
        return DataLoader(trainer.train_dataset, collate_fn=trainer.data_collator, **made)

    return with_loader(make)


# ---- streams


class Stream(IterableDataset[Any]):
    """Rows in their order; nothing to remember."""

    def __iter__(self) -> Iterator[Any]:
        return iter(rows())


class Buffered(IterableDataset[Any]):
    """Shuffles in a small buffer, with Python's own generator, and adds torch's noise."""

    def __iter__(self) -> Iterator[Any]:
        buffer: list[Any] = []
        for row in rows():
            buffer.append(row)
            if len(buffer) == 7:
                yield self._noisy(buffer.pop(random.randrange(7)))
        random.shuffle(buffer)
        yield from map(self._noisy, buffer)

    def _noisy(self, row: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**row, "x": row["x"] + 0.1 * torch.randn(6)}


class Remembering(IterableDataset[Any]):
    """Knows its own place, and draws while it is read."""

    def __init__(self) -> None:
        self.place = self.reads = 0

    def __iter__(self) -> Iterator[Any]:
        source = rows()
        while self.place < len(source):
            row = source[self.place]
            self.place += 1
            self.reads += 1
            yield {**row, "x": row["x"] + 0.1 * torch.randn(6)}
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


class Unrepeatable(IterableDataset[Any]):
    """Shuffles with a generator nobody seeded, so that no two passes are alike."""

    def __iter__(self) -> Iterator[Any]:
        shuffled = rows()
        random.Random().shuffle(shuffled)
        return iter(shuffled)


def _scaled(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": [value * 1.5 for value in row["x"]]}


def _noised(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": [value + random.gauss(0, 0.1) for value in row["x"]]}


def streaming(
    shuffle: bool = False,
    mapped: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    seed: int | None = 11,
    shards: int = 2,
) -> Any:
    """Hugging Face's streaming dataset in some shards."""
    import datasets

    table = {"x": [row["x"].tolist() for row in rows()], "labels": [int(row["labels"]) for row in rows()]}
    stream = datasets.Dataset.from_dict(table).to_iterable_dataset(num_shards=shards)
    if shuffle:
        stream = stream.shuffle(seed=seed, buffer_size=6)
    return stream if mapped is None else stream.map(mapped)


# ---- callbacks


class Counting(TrainerCallback, ExportableState):
    """A user's callback whose state is JSON."""

    def __init__(self) -> None:
        self.steps, self.seen = 0, [0.0]

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps += 1
        self.seen = [*self.seen, state.epoch]

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"steps": self.steps, "seen": self.seen}}


class Summing(TrainerCallback):
    """A user's callback that holds tensors."""

    def __init__(self) -> None:
        self.total, self.steps = torch.zeros(3), 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.total += kwargs["model"].layers[4].bias.detach()
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"tensors": {"total": self.total}, "values": {"steps": self.steps}}

    def load_state_dict(self, stored: dict[str, Any]) -> None:
        self.total, self.steps = stored["tensors"]["total"].clone(), stored["values"]["steps"]


# ---- scenarios


@dataclass(frozen=True)
class Scenario:
    """How to build a run; what is a function is called anew for every Trainer."""

    settings: dict[str, Any] = field(default_factory=dict)
    model: Callable[[], nn.Module] = Net
    data: Callable[[], Any] = rows
    held_out: Callable[[], Any] = lambda: rows(31)[22:]
    trainer: type[Trainer] = Trainer
    collator: Any = None
    callbacks: Callable[[], list[Any]] = list
    #: Where it is cut: where evaluation and saving are due, after an epoch's last step, anywhere.
    cuts: tuple[int, ...] = (4, 6, 9)
    #: Whether it belongs to the daily loop.
    daily: bool = False
    #: Whether others show as much.
    is_full: bool = False


def _schedules() -> dict[str, Scenario]:
    options: dict[str, dict[str, Any]] = {
        "cosine_with_min_lr": {"min_lr": 1e-3},
        "cosine_warmup_with_min_lr": {"min_lr": 1e-3},
        "warmup_stable_decay": {"num_decay_steps": 5},
        "reduce_lr_on_plateau": {"patience": 0, "factor": 0.5},
        "greedy": {"patience": 0, "factor": 0.7},
    }
    return {
        f"schedule {kind.value}": Scenario(
            {
                "lr_scheduler_type": kind.value,
                "lr_scheduler_kwargs": options.get(kind.value, {}),
                "warmup_steps": 0 if kind.value in ("constant", "reduce_lr_on_plateau", "greedy") else 3,
                "eval_steps": 2,
            },
            cuts=(3, 8) if kind.value in ("reduce_lr_on_plateau", "greedy") else (5,),
        )
        for kind in SchedulerType
    }


def _optimizers() -> dict[str, Scenario]:
    chosen: dict[str, dict[str, Any]] = {
        "adamw_torch_fused": {"weight_decay": 0.1},
        "adamw_torch": {"weight_decay": 0.1},
        "sgd": {"optim_args": "momentum=0.9"},
        "adafactor": {},
        "muon": {"weight_decay": 0.1},
        "schedule_free_adamw": {"lr_scheduler_type": "constant", "warmup_steps": 3},
    }
    return {f"optimizer {name}": Scenario({"optim": name, **extra}, cuts=(5, 8)) for name, extra in chosen.items()}


_WORKERS: dict[str, dict[str, Any]] = {
    "0 workers": {},
    "2 workers": {"dataloader_num_workers": 2},
    "2 persistent workers": {"dataloader_num_workers": 2, "dataloader_persistent_workers": True},
}
_BY_SEVERAL = {"metric_for_best_model": "far_loss", "eval_steps": 2}
_BEST_FIRST = {"load_best_model_at_end": True, "learning_rate": 1.0, "eval_steps": 2, "save_steps": 2}

SCENARIOS: dict[str, Scenario] = {
    "shuffled": Scenario(cuts=(1, 4, 6, 8, 9, 12, 14), daily=True),
    "by epochs": Scenario(
        {"max_steps": -1, "num_train_epochs": 2.5, "eval_strategy": "epoch", "save_strategy": "epoch",
         "logging_strategy": "epoch"},
        cuts=(1, 6, 8, 12, 15), daily=True,
    ),
    "accumulation": Scenario(
        {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 5, "max_steps": 8},
        cuts=(1, 3, 4, 6, 8), daily=True,
    ),
    "dropping the last batch": Scenario({"dataloader_drop_last": True, "gradient_accumulation_steps": 2}, cuts=(3, 7)),
    **{f"augmentation, {n}": Scenario(s, data=Augmented, cuts=(6, 8)) for n, s in _WORKERS.items()},
    **{
        f"masking, {n}": Scenario({"remove_unused_columns": False, **s}, collator=masked, cuts=(3, 6))
        for n, s in list(_WORKERS.items())[:2]
    },
    "own loader, shuffle": Scenario(trainer=loader_by(shuffle=lambda data: True), daily=True),
    "own loader, unseeded sampler": Scenario(trainer=loader_by(sampler=lambda data: Unseeded())),
    "own loader, batch sampler": Scenario(trainer=loader_by(batch_sampler=lambda data: UnevenBatches())),
    "own loader, torch's batch sampler": Scenario(
        trainer=loader_by(batch_sampler=lambda data: BatchSampler(Unseeded(), 4, False)), cuts=(4, 9)
    ),
    "own loader, weighted": Scenario(
        trainer=loader_by(sampler=lambda data: WeightedRandomSampler([1.0 + i % 3 for i in range(22)], 22))
    ),
    "token budget": Scenario(
        {"max_tokens_per_batch": 32}, model=Words, data=sentences, held_out=lambda: sentences()[:9], collator=padded
    ),
    "token budget by epochs": Scenario(
        {"max_tokens_per_batch": 32, "max_steps": -1, "num_train_epochs": 2, "gradient_accumulation_steps": 2},
        model=Words, data=sentences, held_out=lambda: sentences()[:9], collator=padded, cuts=(2, 5),
    ),
    "own loader by epochs": Scenario(
        {"max_steps": -1, "num_train_epochs": 2, "per_device_train_batch_size": 8},
        trainer=loader_by(shuffle=lambda data: True), cuts=(2, 6),
    ),
    "grouped by length": Scenario(
        {"train_sampling_strategy": "group_by_length"},
        model=Words, data=sentences, held_out=lambda: sentences()[:9], collator=padded, cuts=(1, 5, 10, 12),
    ),
    "stream": Scenario(data=Stream, cuts=(1, 6, 9, 14)),
    "stream, shuffle buffer": Scenario(data=Buffered, daily=True),
    "stream, shuffle buffer, accumulation": Scenario({"gradient_accumulation_steps": 4}, data=Buffered, cuts=(1, 2, 7)),
    "stream, one worker": Scenario({"dataloader_num_workers": 1}, data=Buffered, cuts=(2, 6, 9)),
    "stream with a state": Scenario(data=Remembering, cuts=(1, 4, 5, 6, 7, 14)),
    "streaming": Scenario(data=streaming),
    "streaming, map": Scenario(data=lambda: streaming(mapped=_scaled), cuts=(6, 9)),
    "streaming, random map": Scenario(data=lambda: streaming(mapped=_noised), cuts=(6, 9)),
    "streaming, shuffle": Scenario(data=lambda: streaming(shuffle=True)),
    "streaming, shuffle, random map": Scenario(data=lambda: streaming(shuffle=True, mapped=_noised), cuts=(6, 9)),
    "fp16": Scenario({"fp16": True}, cuts=(1, 4, 9)),
    "bf16": Scenario({"bf16": True}, cuts=(4, 9)),
    **_schedules(),
    **_optimizers(),
    "moving average": Scenario(callbacks=lambda: [EMACallback(0.8, start_step=2)], cuts=(1, 2, 6, 9), daily=True),
    "moving average at the end": Scenario(callbacks=lambda: [EMACallback(0.8, use_at_end=True)], cuts=(4, 14)),
    "early stopping": Scenario(
        {"learning_rate": 1.0, "eval_steps": 2}, callbacks=lambda: [EarlyStoppingCallback(3)], cuts=(2, 5, 7, 8)
    ),
    "a callback's state": Scenario(callbacks=lambda: [Counting(), Counting(), EarlyStoppingCallback(9)], cuts=(1, 8)),
    "a callback's tensors": Scenario(callbacks=lambda: [Summing(), Summing()], cuts=(1, 8)),
    "best before the cut": Scenario(_BEST_FIRST, cuts=(5, 8, 9, 14)),
    "best, one checkpoint kept": Scenario({**_BEST_FIRST, "save_total_limit": 1}, cuts=(5, 8)),
    "several evaluation sets": Scenario(
        _BY_SEVERAL, held_out=lambda: {"near": rows(27)[22:], "far": rows(31)[27:]}, cuts=(2, 5, 8)
    ),
    "a save every two evaluations": Scenario(
        {"checkpoint_every": "2 evals", "save_steps": 500, "eval_steps": 2}, cuts=(3, 4, 6, 8)
    ),
    "some checkpoints kept": Scenario({"save_total_limit": 1, "keep_every": 4, "save_steps": 2}, cuts=(4, 6, 9)),
    "everything counted": Scenario(
        {"include_num_input_tokens_seen": "all", "logging_first_step": True, "gradient_accumulation_steps": 2},
        model=Words, data=sentences, held_out=lambda: sentences()[:9], collator=padded, cuts=(1, 5, 8),
    ),
}  # fmt: skip
