"""Errors in user code are raised as they are, after the last boundary was saved; resuming continues exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.faults import runner
from trainwright import Trainer, TrainerCallback, TrainingArguments, get_last_checkpoint


class BrokenRows:
    """The row that comes in step 6 cannot be read."""

    def __init__(self, bad: int | None) -> None:
        self.rows, self.bad = runner.rows(), bad

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if index == self.bad:
            raise KeyError("no such picture")
        return self.rows[index]


class BrokenNet(runner.Net):
    def __init__(self, bad: int | None = None) -> None:
        super().__init__()
        self.bad, self.calls = bad, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        result = super().forward(x)
        if self.calls == self.bad:
            raise RuntimeError("shapes do not fit")
        return result


class Raise(TrainerCallback):
    def __init__(self, event: str, step: int) -> None:
        self.step = step
        setattr(self, event, self._raise)

    def _raise(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise ValueError("a mistake in a callback")


def build(folder: Path, model: Any = None, data: Any = None, callbacks: Any = None, **extra: Any) -> Trainer:
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": runner.STEPS,
        "per_device_train_batch_size": 4,
        "save_steps": 100,
        "logging_steps": 2,
        "learning_rate": 1e-2,
        "disable_tqdm": True,
        "use_cpu": True,
        "include_num_input_tokens_seen": True,
        **extra,
    }
    args = TrainingArguments(**settings)
    return Trainer(model or BrokenNet(), args, train_dataset=data or BrokenRows(None), callbacks=callbacks)


CASES: dict[str, tuple[type[Exception], int, dict[str, Any]]] = {
    "in forward": (RuntimeError, 6, {"model": 7}),
    "in forward, second micro-batch": (RuntimeError, 3, {"model": 8, "gradient_accumulation_steps": 2}),
    "in a fetch": (KeyError, 2, {"data": 7}),
    "in on_step_begin": (ValueError, 5, {"event": ("on_step_begin", 5)}),
    "in on_pre_optimizer_step": (ValueError, 5, {"event": ("on_pre_optimizer_step", 5)}),
    "in on_step_end": (ValueError, 5, {"event": ("on_step_end", 5)}),
    "in on_log": (ValueError, 4, {"event": ("on_log", 4)}),
    "in on_epoch_end": (ValueError, 6, {"event": ("on_epoch_end", 6)}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_last_boundary_is_saved_and_continued_exactly(tmp_path: Path, case: str) -> None:
    error, step, options = CASES[case]
    extra = {key: value for key, value in options.items() if key == "gradient_accumulation_steps"}
    straight = build(tmp_path / "straight", **extra)
    straight.train()
    parts: dict[str, Any] = {}
    if "model" in options:
        parts["model"] = BrokenNet(options["model"])
    if "data" in options:
        parts["data"] = BrokenRows(options["data"])
    if "event" in options:
        parts["callbacks"] = [Raise(*options["event"])]
    folder = tmp_path / "run"
    with pytest.raises(error):
        build(folder, **parts, **extra).train()
    assert get_last_checkpoint(folder) == str(folder / f"checkpoint-{step}")
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["kind"] for event in events[-2:]] == ["rescued", "failed"]
    assert events[-1]["error"] == error.__name__
    resumed = build(folder, **extra)
    resumed.train(resume_from_checkpoint=True)
    assert runner.fingerprint(resumed) == runner.fingerprint(straight)


def test_an_error_inside_the_update_saves_nothing_half_changed(tmp_path: Path) -> None:
    class Breaking(torch.optim.SGD):
        calls = 0

        def step(self, closure: Any = None) -> Any:
            Breaking.calls += 1
            if Breaking.calls == 4:
                raise RuntimeError("half of the weights are new")
            return super().step(closure)

    trainer = build(tmp_path / "run")
    trainer.optimizer_cls_and_kwargs = (Breaking, {"lr": 0.1})
    with pytest.raises(RuntimeError, match="half of the weights"):
        trainer.train()
    assert get_last_checkpoint(tmp_path / "run") is None
    assert "not_saved" in (tmp_path / "run" / "events.jsonl").read_text()


def test_without_saving_nothing_is_saved(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        build(tmp_path / "run", BrokenNet(5), save_strategy="no").train()
    assert list((tmp_path / "run").glob("checkpoint-*")) == []


def test_an_error_in_the_very_first_step_leaves_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        build(tmp_path / "run", BrokenNet(1)).train()
    assert list((tmp_path / "run").glob("checkpoint-*")) == []
