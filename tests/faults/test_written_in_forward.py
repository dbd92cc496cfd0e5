"""Models that write weights or buffers in their forward pass: a step that is undone leaves no trace of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.faults import runner
from tests.unprepared import Unprepared
from trainwright import Trainer, TrainingArguments, get_last_checkpoint


class Codebook(nn.Module):
    """Keeps a codebook, a slowly following copy of a layer and a mean, each in a way that torch does not count."""

    def __init__(self, fails_at: int = 0, error: Exception | None = None, *, early: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.out, self.dropout = nn.Linear(6, 6), nn.Linear(6, 3), nn.Dropout(0.1)
        self.follower = nn.Linear(6, 6).requires_grad_(False)
        self.codes: Tensor
        self.mean: Tensor
        self.register_buffer("codes", torch.randn(40, 6))
        self.register_buffer("mean", torch.zeros(6))
        self.passes, self.fails_at, self.early = 0, fails_at, early
        self.error = error or RuntimeError("a mistake")

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        if self.early and self.passes == self.fails_at:
            raise self.error
        hidden = torch.tanh(self.layer(self.dropout(x)))
        nearest = torch.cdist(hidden.detach(), self.codes).argmin(1)
        # Written through `.data`, as implementations of VQ-VAE and MoCo do.
        self.codes.data[nearest] = 0.9 * self.codes.data[nearest] + 0.1 * hidden.detach()
        for own, following in zip(self.layer.parameters(), self.follower.parameters(), strict=True):
            following.data.mul_(0.9).add_(own.data, alpha=0.1)
        # Another tensor under the same name.
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        if self.passes == self.fails_at:
            raise self.error
        return self.out(hidden + self.follower(x) + self.codes[nearest] - self.mean)


def build(folder: Path, model: nn.Module, *, looks: bool = False, **extra: Any) -> Trainer:
    settings = {"max_steps": 8, "per_device_train_batch_size": 4, "save_steps": 100, "learning_rate": 1e-2}
    quiet = {"disable_tqdm": True, "use_cpu": True, "resume": "auto", "logging_steps": 2}
    args = TrainingArguments(str(folder), **settings, **quiet, **extra)
    # The look before the first step is tested apart: here it is a step that does not fit.
    kind = Trainer if looks else Unprepared
    return kind(model, args, train_dataset=runner.rows())


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.set_num_threads(1)
    trainer = build(tmp_path_factory.mktemp("straight"), Codebook())
    trainer.train()
    return runner.fingerprint(trainer)


@pytest.mark.parametrize("step", [3, 6])
def test_an_error_in_the_middle_of_a_step(tmp_path: Path, straight: str, step: int) -> None:
    with pytest.raises(RuntimeError, match="a mistake"):
        build(tmp_path, Codebook(fails_at=step)).train()
    assert get_last_checkpoint(tmp_path) == str(tmp_path / f"checkpoint-{step - 1}")
    trainer = build(tmp_path, Codebook())
    trainer.train()
    assert runner.fingerprint(trainer) == straight


@pytest.mark.slow
@pytest.mark.parametrize("step", [3, 6])
def test_a_step_that_does_not_fit_into_memory_is_done_again(tmp_path: Path, step: int) -> None:
    """What it had written before it failed is gone: all is as if it had failed at once."""
    ends = []
    for early in (True, False):
        model = Codebook(step, torch.OutOfMemoryError("CUDA out of memory"), early=early)
        trainer = build(tmp_path / str(early), model, micro_batch="auto")
        trainer.train()
        assert model.passes > 8
        ends.append(runner.fingerprint(trainer))
    assert ends[0] == ends[1]


@pytest.mark.slow
def test_the_look_before_the_first_step_leaves_no_trace(tmp_path: Path, straight: str) -> None:
    model = Codebook()
    trainer = build(tmp_path, model, looks=True, micro_batch="auto")
    trainer.train()
    assert model.passes > 8
    assert runner.fingerprint(trainer) == straight


def test_a_step_that_is_not_finite_leaves_the_codebook_alone(tmp_path: Path) -> None:
    rows = runner.rows()
    model = Codebook()
    trainer = build(tmp_path, model)
    trainer.train_dataset = [*rows[:20], {**rows[20], "x": torch.full((6,), math.nan)}, rows[21]]
    trainer.train()
    assert all(torch.isfinite(tensor).all() for tensor in model.state_dict().values())


class Queue(nn.Module):
    """Keeps a few columns of a large table, that no optimizer holds, from one step to the next (MoCo does)."""

    def __init__(self, first: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        # Copied first: the table's turn comes when the next step is under way.
        self.large = nn.Parameter(torch.zeros(8_000_000))
        self.out, self.first, self.passes = nn.Linear(6, 3), first, 0
        self.table = nn.Parameter(torch.zeros(512, 2048), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        if self.training and self.passes >= self.first:
            at = 4 * self.passes
            self.table.data[:, at : at + 4] = self.passes
        return self.out(x)


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 4])
def test_a_few_columns_of_a_table_are_those_of_the_step_that_is_saved(tmp_path: Path, first: int) -> None:
    """Also where the model writes nothing in its first steps."""
    model = Queue(first)
    args = TrainingArguments(
        str(tmp_path), max_steps=7, save_steps=1, per_device_train_batch_size=4, disable_tqdm=True, use_cpu=True
    )
    Trainer(model, args, train_dataset=runner.rows(40)).train()
    for step in range(1, 8):
        (stored,) = [load_file(tmp_path / f"checkpoint-{step}" / "model.safetensors")["table"]]
        assert int(stored.max()) == (step if step >= first else 0)


class LateMean(nn.Module):
    """Writes a buffer from a late step on: with statistics, or under another tensor's name."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.out, self.way, self.passes = nn.Linear(6, 3), way, 0
        self.count: Tensor
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        if self.passes >= 5 and self.way == "in place":
            self.count += 1
        elif self.passes >= 5:
            self.count = self.count + 1
        return self.out(x) * (math.nan if self.passes == 6 else 1.0)


@pytest.mark.parametrize("way", ["in place", "another tensor"])
def test_a_buffer_that_is_first_written_late_is_put_back_too(tmp_path: Path, way: str) -> None:
    model = LateMean(way)
    build(tmp_path, model).train()
    assert model.passes == 8
    assert int(model.count) == 3, "of the steps 5, 6, 7 and 8 the sixth was not finite"


@pytest.mark.slow
def test_parameters_that_the_optimizer_does_not_hold_start_each_step_without_gradients(tmp_path: Path) -> None:
    """Their gradients count in the norm by which all are clipped: a resume has none of an earlier step."""

    def partly(folder: Path, **extra: Any) -> Trainer:
        model = runner.Net()
        args = TrainingArguments(
            str(folder), per_device_train_batch_size=4, max_grad_norm=0.1, save_steps=4, logging_steps=1,
            lr_scheduler_type="constant", disable_tqdm=True, use_cpu=True, resume="auto", **extra
        )  # fmt: skip
        optimizer = torch.optim.SGD(model.layers[0].parameters(), lr=0.1)
        return Trainer(model, args, train_dataset=runner.rows(), optimizers=(optimizer, None))

    straight = partly(tmp_path / "straight", max_steps=8)
    straight.train()
    partly(tmp_path / "cut", max_steps=4).train()
    resumed = partly(tmp_path / "cut", max_steps=8)
    resumed.train()
    norms = [[entry["grad_norm"] for entry in t.state.log_history if "grad_norm" in entry] for t in (straight, resumed)]
    assert norms[0] == norms[1]
    assert runner.fingerprint(resumed) == runner.fingerprint(straight)
