"""Bit-equal to a loop a person would write."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.models import Plain, classification_rows, tiny_gpt2, tiny_llama, token_rows
from trainwright import Trainer, TrainingArguments
from trainwright.data.order import RandomOrder


class Dropping(Plain):
    """With dropout: equal only if random numbers are drawn in the same order."""

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.dropout(torch.tanh(self.first(x)), 0.3, self.training))


def batches(rows: list[dict[str, torch.Tensor]], size: int, seed: int, epoch: int) -> list[dict[str, torch.Tensor]]:
    order = RandomOrder(len(rows), seed)
    order.set_epoch(epoch)
    indices = list(order)
    cut = [indices[i : i + size] for i in range(0, len(indices), size)]
    return [{key: torch.stack([rows[i][key] for i in chosen]) for key in rows[0]} for chosen in cut]


def raw_loop(
    model: nn.Module, rows: list[Any], steps: int, size: int, accumulation: int, rate: float, fused: bool
) -> list[float]:
    """Plain PyTorch: AdamW with weight decay on matrices, linear schedule, clipping at 1."""
    matrices = [p for n, p in model.named_parameters() if not n.endswith("bias")]
    biases = [p for n, p in model.named_parameters() if n.endswith("bias")]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.999), eps=1e-8, fused=fused)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, (steps - step) / steps))
    torch.manual_seed(42)
    model.train()
    losses: list[float] = []
    epoch = 0
    while len(losses) < steps:
        epoch_batches = batches(rows, size, 42, epoch)
        for start in range(0, len(epoch_batches), accumulation):
            group = epoch_batches[start : start + accumulation]
            counts = [len(batch["labels"]) for batch in group]
            total = 0.0
            for batch, count in zip(group, counts, strict=True):
                loss = model(**batch)["loss"]
                if len(group) > 1:
                    loss = loss * (count / sum(counts))
                loss.backward()
                total += loss.item()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(total)
            if len(losses) == steps:
                break
        epoch += 1
    return losses


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
def test_fifty_steps_bit_for_bit(
    make_args: Callable[..., TrainingArguments], accumulation: int, optim: str, seed: int
) -> None:
    rows = classification_rows(37, seed=seed)
    ours = Dropping(seed=seed).float()
    theirs = copy.deepcopy(ours)
    args = make_args(
        max_steps=50,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=accumulation,
        learning_rate=1e-2,
        weight_decay=0.1,
        logging_steps=1,
        optim=optim,
    )
    trainer = Trainer(ours, args, train_dataset=rows)
    trainer.train()
    losses = raw_loop(theirs, rows, 50, 4, accumulation, 1e-2, fused=optim == "adamw_torch_fused")
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged == pytest.approx(losses, rel=1e-6)
    if accumulation == 1:
        assert logged == losses
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name


@pytest.mark.parametrize("make_model", [tiny_gpt2, tiny_llama])
def test_logged_loss_is_the_models_own(
    make_args: Callable[..., TrainingArguments], make_model: Callable[[], Any]
) -> None:
    """HF logs GPT-2's loss too small by (L-1)/L."""
    rows = token_rows(4)
    model = make_model()
    batch = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
    expected = model(**batch).loss.item()
    args = make_args(max_steps=1, per_device_train_batch_size=4, logging_steps=1)
    trainer = Trainer(model, args, train_dataset=rows)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("make_model", [tiny_gpt2, tiny_llama])
def test_eval_loss_is_the_token_mean_for_any_batch_size(
    make_args: Callable[..., TrainingArguments], make_model: Callable[[], Any]
) -> None:
    rows = token_rows(23, longest=31)
    model = make_model().eval()
    batch = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    expected = F.cross_entropy(logits[:, :-1].reshape(-1, 32), batch["labels"][:, 1:].reshape(-1)).item()
    for size in (1, 2, 4, 8, 23):
        args = make_args(per_device_eval_batch_size=size)
        loss = Trainer(model, args, eval_dataset=rows).evaluate()["eval_loss"]
        assert loss == pytest.approx(expected, rel=1e-6), f"eval batch {size}"
