"""The same training under transformers' Trainer and ours, cut where a test wants it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

import trainwright
from tests.models import classification_rows, sentence_rows, tiny_bert, tiny_gpt2

LIBRARIES: dict[str, Any] = {"transformers": transformers, "trainwright": trainwright}

#: Three steps an epoch, nine in all.
SETTINGS: dict[str, Any] = {
    "num_train_epochs": 3,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "learning_rate": 3e-3,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 2,
    "logging_steps": 1,
    "save_strategy": "steps",
    "save_steps": 1,
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
}


class Normed(nn.Module):
    """A plain module with something that decays, something that does not, and dropout."""

    dropout = 0.2

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.second = nn.Linear(8, 3)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.second(F.dropout(self.norm(torch.tanh(self.first(x))), self.dropout, self.training))
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Steady(Normed):
    """The same without dropout."""

    dropout = 0.0


def dropping_gpt2() -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def dropping_bert() -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=32, max_position_embeddings=32)
    config.num_labels = 3
    return transformers.BertForSequenceClassification(config)


def mean_over_the_step(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """transformers gives a BERT classifier's loss without dividing it by the accumulation steps; this one is exact."""
    return F.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch


def token_labels(rows: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Language-model labels; the first, which no model predicts, is masked, since transformers counts it."""
    return [{**row, "labels": torch.cat([torch.tensor([-100]), row["input_ids"][1:]])} for row in rows]


class Case(NamedTuple):
    model: Callable[[], Any]
    rows: Callable[[], list[dict[str, Tensor]]]
    extra: dict[str, Any]


CASES = {
    "plain": Case(Normed, lambda: classification_rows(24), {}),
    "gpt2": Case(dropping_gpt2, lambda: token_labels(sentence_rows(24)), {}),
    "bert": Case(dropping_bert, lambda: sentence_rows(24), {"compute_loss_func": mean_over_the_step}),
}


#: transformers draws a number at the start of each epoch from the generator that dropout uses, we do not: so after an
#: export runs with dropout agree up to the end of the epoch, and runs without it to the end.
STEADY = {
    "plain": CASES["plain"]._replace(model=Steady),
    "gpt2": CASES["gpt2"]._replace(model=tiny_gpt2),
    "bert": CASES["bert"]._replace(model=tiny_bert),
}


def build(library: str, case: Case, folder: Path, *callbacks: Any, **settings: Any) -> Any:
    args = LIBRARIES[library].TrainingArguments(str(folder), **{**SETTINGS, **settings})
    return LIBRARIES[library].Trainer(
        case.model(), args, train_dataset=case.rows(), callbacks=list(callbacks), **case.extra
    )


def losses(trainer: Any) -> dict[int, tuple[float, float]]:
    """Loss and learning rate of each step."""
    return {e["step"]: (e["loss"], e["learning_rate"]) for e in trainer.state.log_history if "loss" in e}
