"""Trainings with a mistake in them, one each."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Sampler

from tests.models import Plain, classification_rows, token_rows
from trainwright import Trainer


class Tagger(nn.Module):
    """A tag for each token, by the token alone."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.tags = nn.Embedding(32, 8), nn.Linear(8, 32)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.tags(self.mixed(self.words(input_ids), attention_mask))
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}

    def mixed(self, x: Tensor, mask: Tensor) -> Tensor:
        return torch.tanh(x)


class AttendsPadding(Tagger):
    """Its attention is never told what is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def mixed(self, x: Tensor, mask: Tensor) -> Tensor:
        return x + self.attention(x, x, x)[0]


class Shifting(Tagger):
    """Predicts the next token, with a mean of its own."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.tags(self.mixed(self.words(input_ids), attention_mask))
        if labels is None:
            return {"logits": logits}
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


class DividesBySamples(Trainer):
    """The sum over all targets, divided by the number of samples."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs, labels = model(**inputs), inputs["labels"]
        loss = F.cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten(), reduction="sum") / len(labels)
        return (loss, outputs) if return_outputs else loss


class DividesByAccumulation(Trainer):
    """As a loop by hand would do it."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(model, inputs, *args, **kwargs) / self.args.gradient_accumulation_steps


class Weighted(Trainer):
    """Classes have weights, and targets are counted by them, as docs/coming-from-hugging-face.md says."""

    weights = torch.tensor([0.1, 0.7, 1.3])

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs["logits"], inputs["labels"], weight=self.weights.to(outputs["logits"]))
        return (loss, outputs) if return_outputs else loss

    def count_targets(self, inputs: Any) -> Any:
        return self.weights[inputs["labels"]].sum()


class DividesByProcesses(Trainer):
    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(model, inputs, *args, **kwargs) / self.args.world_size


class DiesAmongOthers(Trainer):
    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if os.environ.get("RANK") == "1":
            os._exit(9)
        return super().compute_loss(model, inputs, *args, **kwargs)


class Centred(nn.Module):
    """Takes the mean over the samples away."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Mixing(Plain):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.between = layer

    def logits(self, x: Tensor) -> Tensor:
        return self.second(self.between(torch.tanh(self.first(x))))


class Noisy(Plain):
    """Draws random numbers that no dropout is asked for."""

    def logits(self, x: Tensor) -> Tensor:
        return super().logits(x + 0.1 * torch.randn_like(x))


class Wandering(Sampler[int]):
    """Another order each time, by a count that all samplers share and no checkpoint holds."""

    passes = itertools.count()

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(next(self.passes))
        return iter(torch.randperm(self.size, generator=generator).tolist())


class WanderingTrainer(Trainer):
    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return Wandering(len(self.train_dataset))


class CountingSampler(Wandering):
    """Counts its passes itself: the Trainer finds that out, and passes earlier epochs again."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.number = 0

    def __iter__(self) -> Iterator[int]:
        self.number += 1
        generator = torch.Generator().manual_seed(self.number)
        return iter(torch.randperm(self.size, generator=generator).tolist())


class CountingLoader:
    """A loader that is not torch's, with another order in each pass, and no state_dict()."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows, self.number = rows, 0

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[Any]:
        self.number += 1
        order = torch.randperm(len(self.rows), generator=torch.Generator().manual_seed(self.number)).tolist()
        for place in range(0, 16, 4):
            chosen = [self.rows[index] for index in order[place : place + 4]]
            yield {name: torch.stack([row[name] for row in chosen]) for name in chosen[0]}


class OwnLoaderTrainer(Trainer):
    loader: Any = None

    def get_train_dataloader(self) -> Any:
        self.loader = self.loader or CountingLoader(self.train_dataset)
        return self.loader


@dataclass(frozen=True)
class Fault:
    """A training with a mistake, the rows that must fail, where, and words of the reason."""

    kind: type[Trainer]
    model: Callable[[], Any]
    data: Callable[[], Any]
    fails: set[str]
    reason: str


#: All rows in which a batch is cut, or shared.
CUT = {
    "the batch in 2 pieces",
    "micro_batch=1",
    "out of memory, then in pieces",
    "2 batches accumulated",
    "2 processes (ddp)",
    "2 processes (fsdp)",
}

FAULTS = {
    "a loss that divides by the batch size": Fault(
        DividesBySamples, Tagger, token_rows, CUT, "it is the loss: it divides by the number of samples"
    ),
    "a mask that ignores padding": Fault(
        Trainer, AttendsPadding, token_rows, {"8 more pad tokens"}, "padding reaches the other positions in attention"
    ),
    "a sampler with hidden state": Fault(
        WanderingTrainer, Plain, classification_rows, {"resume after"}, "on other data is trained on: the sampler"
    ),
    "a loss scaled by 1/accumulation": Fault(
        DividesByAccumulation,
        Tagger,
        token_rows,
        {"2 batches accumulated"},
        "every gradient is 0.5 times what it should be: the loss is divided by gradient_accumulation_steps",
    ),
    "a layer that mixes samples": Fault(
        Trainer,
        lambda: Mixing(Centred()),
        classification_rows,
        CUT,
        "samples influence each other in between (Centred)",
    ),
}
