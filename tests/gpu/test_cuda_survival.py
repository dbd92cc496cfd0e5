"""Saving, skipping and undoing steps on a GPU. Run on a machine that has one: pytest -m gpu."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models import classification_rows
from trainwright import Preempted, Trainer, TrainerCallback, TrainingArguments
from trainwright.checkpoint.manifest import problems_of

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
MakeArgs = Callable[..., TrainingArguments]


class Net(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.second = nn.Linear(6, width), nn.BatchNorm1d(width), nn.Linear(width, 3)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.second(F.dropout(self.norm(self.first(x)), 0.2, self.training))
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


@pytest.fixture(autouse=True)
def _sync_mode_is_reset() -> Iterator[None]:
    yield
    torch.cuda.set_sync_debug_mode("default")


def poisoned(*bad: int, count: int = 64) -> list[dict[str, Tensor]]:
    rows = classification_rows(count)
    for index in bad:
        rows[index]["x"] = torch.full((6,), math.nan)
    return rows


class Watch(TrainerCallback):
    def __init__(self) -> None:
        self.states: list[dict[str, Tensor]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.states.append({name: tensor.clone() for name, tensor in model.state_dict().items()})


def settings(make_args: MakeArgs, **extra: Any) -> TrainingArguments:
    defaults: dict[str, Any] = {
        "use_cpu": False,
        "max_steps": 8,
        "per_device_train_batch_size": 4,
        "train_sampling_strategy": "sequential",
        "learning_rate": 1e-2,
        "logging_steps": 100,
        "full_determinism": True,
    }
    return make_args(**{**defaults, **extra})


@pytest.mark.parametrize("clipping", [1.0, 0.0])
@pytest.mark.parametrize("optim", ["adamw_torch_fused", "adamw_torch", "sgd"])
@pytest.mark.parametrize("precision", [{}, {"bf16": True}, {"fp16": True}], ids=["fp32", "bf16", "fp16"])
def test_a_bad_step_changes_nothing(
    make_args: MakeArgs, optim: str, precision: dict[str, bool], clipping: float
) -> None:
    watch = Watch()
    args = settings(make_args, optim=optim, max_grad_norm=clipping, **precision)
    Trainer(Net(), args, train_dataset=poisoned(9), callbacks=[watch]).train()
    for name, before in watch.states[1].items():
        assert torch.equal(watch.states[2][name], before), name
    assert all(torch.isfinite(tensor).all() for tensor in watch.states[-1].values())
    events = [json.loads(line) for line in (Path(str(args.output_dir)) / "events.jsonl").read_text().splitlines()]
    bad = [event for event in events if event["kind"] == "nonfinite_step"]
    assert [event["step"] for event in bad] == [3]
    assert 9 in bad[0]["data"]["samples"]


class ForbidSyncs(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        torch.cuda.set_sync_debug_mode("error" if 2 <= state.global_step < 7 else "default")


@pytest.mark.parametrize("clipping", [1.0, 0.0])
def test_skipping_does_not_wait_for_the_device(make_args: MakeArgs, clipping: float) -> None:
    """With a fused optimizer; the bad step lies inside the steps in which waiting raises."""
    args = settings(make_args, max_grad_norm=clipping)
    trainer = Trainer(Net(), args, train_dataset=poisoned(17), callbacks=[ForbidSyncs()])
    assert trainer.train().global_step == 8
    assert all(torch.isfinite(tensor).all() for tensor in trainer.model.state_dict().values())


def test_a_background_save_is_of_its_own_moment(make_args: MakeArgs, tmp_path: Path) -> None:
    """Many steps are queued behind the copy; the checkpoint still holds the weights of its step."""

    class Keep(TrainerCallback):
        kept: dict[int, dict[str, Tensor]] = {}  # noqa: RUF012

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            self.kept[state.global_step] = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    from safetensors.torch import load_file

    keep = Keep()
    args = settings(make_args, max_steps=30, save_strategy="steps", save_steps=10)
    Trainer(Net(2048), args, train_dataset=poisoned(count=256), callbacks=[keep]).train()
    for step in (10, 20, 30):
        folder = tmp_path / "run" / f"checkpoint-{step}"
        assert problems_of(folder) == []
        for name, tensor in load_file(folder / "model.safetensors").items():
            assert torch.equal(tensor, keep.kept[step][name].cpu()), (step, name)


class SignalAt(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 4:
            signal.raise_signal(signal.SIGTERM)


class Failing(Net):
    calls = 0

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        result = super().forward(x, labels)
        Failing.calls += 1
        if Failing.calls == 6:
            raise RuntimeError("in the middle of a step")
        return result


@pytest.mark.parametrize("precision", [{}, {"bf16": True}, {"fp16": True}], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("how", ["signal", "error"])
def test_stopped_and_resumed_bit_for_bit(
    make_args: MakeArgs, tmp_path: Path, precision: dict[str, bool], how: str
) -> None:
    def build(folder: str, model: nn.Module, *callbacks: TrainerCallback) -> Trainer:
        args = settings(
            make_args,
            output_dir=str(tmp_path / folder),
            save_strategy="steps",
            save_steps=100,
            resume="auto",
            **precision,
        )
        return Trainer(model, args, train_dataset=poisoned(), callbacks=list(callbacks))

    straight = build("straight", Net())
    straight.train()
    Failing.calls = 0
    cut = build("cut", Failing() if how == "error" else Net(), *([SignalAt()] if how == "signal" else []))
    with pytest.raises(Preempted if how == "signal" else RuntimeError):
        cut.train()
    assert (tmp_path / "cut" / "checkpoint-5" / "manifest.json").is_file()
    resumed = build("cut", Net())
    resumed.train()
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
