"""Saving beside training: the checkpoint is of its own moment, whatever happens meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainerCallback, TrainingArguments
from trainwright.checkpoint.pack import TensorPack

MakeArgs = Callable[..., TrainingArguments]


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> dict[int, dict[str, Tensor]]:
    """Weights after each step, noted without a callback: one that is not ours would make the copy wait."""
    from trainwright.engines.torch.engine import TorchEngine

    seen: dict[int, dict[str, Tensor]] = {}
    real = TorchEngine.apply_update

    def noting(self: Any) -> None:
        real(self)
        seen[len(seen) + 1] = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    monkeypatch.setattr(TorchEngine, "apply_update", noting)
    return seen


def slow_copies(monkeypatch: pytest.MonkeyPatch, pause: Callable[[], object]) -> list[str]:
    """Copies take a while; returns the names of the threads that made them."""
    threads: list[str] = []
    real = TensorPack.copy

    def copy(self: TensorPack, tensors: Mapping[str, Tensor]) -> None:
        threads.append(threading.current_thread().name)
        if threads[-1] == "trainwright-save":
            pause()
        real(self, tensors)

    monkeypatch.setattr(TensorPack, "copy", copy)
    return threads


def saved(folder: Path, step: int) -> dict[str, Tensor]:
    return load_file(folder / f"checkpoint-{step}" / "model.safetensors")


@pytest.mark.slow
def test_an_update_waits_until_the_weights_are_copied(
    make_args: MakeArgs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: dict[int, dict[str, Tensor]]
) -> None:
    threads = slow_copies(monkeypatch, lambda: time.sleep(0.05))
    args = make_args(max_steps=4, save_strategy="steps", save_steps=1, learning_rate=0.1)
    Trainer(Plain().float(), args, train_dataset=classification_rows(32)).train()
    assert set(threads) == {"trainwright-save"}
    for step in range(1, 5):
        for name, tensor in saved(tmp_path / "run", step).items():
            assert torch.equal(tensor, history[step][name]), (step, name)


def test_with_somebody_elses_callback_the_copy_is_made_at_once(
    make_args: MakeArgs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may change weights at any event, as this one does."""

    class Meddler(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            for parameter in model.parameters():
                parameter.data.mul_(0.5)

    threads = slow_copies(monkeypatch, lambda: None)
    args = make_args(max_steps=3, save_strategy="steps", save_steps=1, learning_rate=0.0, optim="sgd")
    Trainer(Plain().float(), args, train_dataset=classification_rows(32), callbacks=[Meddler()]).train()
    assert set(threads) == {"MainThread"}
    first, third = saved(tmp_path / "run", 1), saved(tmp_path / "run", 3)
    for name, tensor in first.items():
        torch.testing.assert_close(third[name], tensor * 0.25)


class Writing(nn.Module):
    """Rescales its embedding in the forward pass, through ``.data`` or not: weights change outside the update."""

    def __init__(self, forward_ran: threading.Event, *, first: int, through_data: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(400, 20)
        self.out = nn.Linear(20, 3)
        self.forward_ran, self.first, self.through_data = forward_ran, first, through_data
        self.passes = 0

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.passes += 1
        if self.passes >= self.first:
            weight = self.words.weight.data if self.through_data else self.words.weight.detach()
            # A few rows, as a codebook does with the codes that were used.
            weight[5 * self.passes : 5 * self.passes + 3] *= 3.0
        loss = F.cross_entropy(self.out(self.words(x.abs().long().clamp(max=9)).mean(1)), labels)
        self.forward_ran.set()
        return {"loss": loss}


def train_writing(
    make_args: MakeArgs, monkeypatch: pytest.MonkeyPatch, forward_ran: threading.Event, model: nn.Module
) -> list[str]:
    """Six steps, saved at every second; copies in the background wait for the next forward pass."""

    def until_next_forward() -> None:
        forward_ran.clear()
        forward_ran.wait(2)

    threads = slow_copies(monkeypatch, until_next_forward)
    args = make_args(max_steps=6, save_strategy="steps", save_steps=2, learning_rate=0.1)
    Trainer(model, args, train_dataset=classification_rows(32)).train()
    return threads


def assert_saved(folder: Path, history: dict[int, dict[str, Tensor]], *steps: int) -> None:
    found = sorted(path.name for path in folder.glob("checkpoint-*"))
    assert found == [f"checkpoint-{step}" for step in steps]
    for step in steps:
        for name, tensor in saved(folder, step).items():
            assert torch.equal(tensor, history[step][name]), (step, name)


@pytest.mark.parametrize("through_data", [True, False])
def test_a_model_that_writes_its_weights_is_found_out_in_its_first_steps(
    make_args: MakeArgs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    history: dict[int, dict[str, Tensor]],
    through_data: bool,
) -> None:
    forward_ran = threading.Event()
    model = Writing(forward_ran, first=1, through_data=through_data)
    threads = train_writing(make_args, monkeypatch, forward_ran, model)
    assert set(threads) == {"MainThread"}
    assert_saved(tmp_path / "run", history, 2, 4, 6)


@pytest.mark.slow
@pytest.mark.parametrize("through_data", [True, False])
def test_a_torn_copy_is_thrown_away_and_made_up_for(
    make_args: MakeArgs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    history: dict[int, dict[str, Tensor]],
    caplog: pytest.LogCaptureFixture,
    through_data: bool,
) -> None:
    """Where a model begins to write later: step 2 is torn, so step 3 is saved; from then on copies are made at once."""
    forward_ran = threading.Event()
    model = Writing(forward_ran, first=3, through_data=through_data)
    threads = train_writing(make_args, monkeypatch, forward_ran, model)
    assert "the weights were changed while they were copied" in caplog.text
    assert threads.count("trainwright-save") <= 2
    assert_saved(tmp_path / "run", history, 3, 4, 6)


def test_a_listener_of_on_save_finds_the_finished_folder(make_args: MakeArgs) -> None:
    found: list[list[str]] = []

    class Look(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            (folder / "note.txt").write_text("mine")
            found.append(sorted(path.name for path in folder.iterdir()))

    args = make_args(max_steps=2, save_strategy="steps", save_steps=1)
    Trainer(Plain().float(), args, train_dataset=classification_rows(32), callbacks=[Look()]).train()
    assert len(found) == 2
    assert {"manifest.json", "model.safetensors", "note.txt"} <= set(found[0])


def test_an_override_of_save_checkpoint_finds_it_too(make_args: MakeArgs) -> None:
    class Mine(Trainer):
        seen = 0

        def _save_checkpoint(self, model: Any, trial: Any = None) -> None:  # type: ignore[override]
            super()._save_checkpoint(model, trial)
            folder = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}"
            assert (folder / "manifest.json").is_file()
            Mine.seen += 1

    args = make_args(max_steps=2, save_strategy="steps", save_steps=1)
    Mine(Plain().float(), args, train_dataset=classification_rows(32)).train()
    assert Mine.seen == 2
