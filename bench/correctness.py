"""The same runs under transformers' Trainer and ours, where the two differ.

python bench/correctness.py
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import tempfile
import warnings
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

import trainwright

LIBRARIES: list[Any] = [transformers, trainwright]


class Plain(nn.Module):
    """A mean loss of its own, and a forward that swallows any keyword."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor, labels: Tensor, **kwargs: Any) -> dict[str, Tensor]:
        logits = self.layer(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Explodes(Plain):
    def forward(self, x: Tensor, labels: Tensor, **kwargs: Any) -> dict[str, Tensor]:
        outputs = super().forward(x, labels)
        return {**outputs, "loss": outputs["loss"] * torch.nan}


def plain_rows() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        {"x": torch.randn(6, generator=generator), "labels": torch.randint(0, 3, (), generator=generator)}
        for _ in range(16)
    ]


def bert() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **sizes)
    return BertForSequenceClassification(config)


def bert_rows() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        {
            "input_ids": torch.randint(1, 32, (8,), generator=generator),
            "labels": torch.randint(0, 2, (), generator=generator),
        }
        for _ in range(16)
    ]


def gpt2() -> Any:
    torch.manual_seed(0)
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=16, n_layer=1, n_head=2, **none))


def text_rows(count: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    rows = []
    for _ in range(count):
        length = int(torch.randint(2, 32, (), generator=generator))
        ids = torch.randint(0, 64, (32,), generator=generator)
        rows.append({"input_ids": ids, "labels": torch.where(torch.arange(32) < length, ids, -100)})
    return rows


def run(library: Any, model: nn.Module, rows: list[Any], evaluate: bool = False, **kwargs: Any) -> dict[str, float]:
    """First log of one training step, or the evaluation's metrics."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        args = library.TrainingArguments(
            folder, max_steps=1, logging_steps=1, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True,
            train_sampling_strategy="sequential", **kwargs,
        )  # fmt: skip
        trainer = library.Trainer(model, args, train_dataset=rows, eval_dataset=rows)
        if evaluate:
            return trainer.evaluate()
        trainer.train()
        return trainer.state.log_history[0]


def show(title: str, cells: dict[str, list[float]], note: str = "") -> None:
    print(f"\n{title}" + (f"   ({note})" if note else ""))
    for name, values in cells.items():
        print(f"  {name:14}" + "".join(f"{value:12.4f}" for value in values))


def main() -> None:
    cuts = [(16, 1), (4, 4), (1, 16)]
    for name, model, rows in (
        ("a module with **kwargs", Plain, plain_rows()),
        ("a BERT classifier", bert, bert_rows()),
    ):
        cells = {
            lib.__name__: [
                run(lib, model(), rows, per_device_train_batch_size=b, gradient_accumulation_steps=a)["grad_norm"]
                for b, a in cuts
            ]
            for lib in LIBRARIES
        }
        show(f"gradient norm of {name}, the same 16 samples as (16,1) (4,4) (1,16)", cells)
    rows = text_rows(4)
    batch = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
    own = gpt2()(**batch).loss.item()
    cells = {lib.__name__: [run(lib, gpt2(), rows, per_device_train_batch_size=4)["loss"]] for lib in LIBRARIES}
    show("logged loss of GPT2LMHeadModel on one batch", cells, f"the model's own: {own:.4f}")
    rows = text_rows(23)
    sizes = [1, 2, 4, 8, 23]
    batch = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
    with torch.no_grad():
        logits = gpt2()(input_ids=batch["input_ids"]).logits
    mean = F.cross_entropy(logits[:, :-1].reshape(-1, 64), batch["labels"][:, 1:].reshape(-1)).item()
    cells = {
        lib.__name__: [run(lib, gpt2(), rows, True, per_device_eval_batch_size=size)["eval_loss"] for size in sizes]
        for lib in LIBRARIES
    }
    show("eval_loss for evaluation batches of 1, 2, 4, 8, 23", cells, f"token mean: {mean:.4f}")
    cells = {lib.__name__: [run(lib, Explodes(), plain_rows())["loss"]] for lib in LIBRARIES}
    show("logged loss where the loss is NaN", cells)


if __name__ == "__main__":
    main()
