"""What only a GPU can show. Run on a machine that has one: pytest -m gpu."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.models import Plain, classification_rows, tiny_gpt2, tiny_llama, token_rows
from trainwright import Trainer, TrainerCallback, TrainingArguments

# torch warns of its own prototypes (sync debugging, inductor's hints); these are not ours to fail on.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


@pytest.fixture(autouse=True)
def _sync_mode_is_reset() -> Iterator[None]:
    yield
    torch.cuda.set_sync_debug_mode("default")


class ForbidSyncs(TrainerCallback):
    """From the third step on, anything that waits for the device between two logs raises."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= 2:
            torch.cuda.set_sync_debug_mode("error")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == state.max_steps:
            torch.cuda.set_sync_debug_mode("default")


def forgive_syncs_in_forward(model: nn.Module) -> None:
    """transformers' own masking code asks the device whether anything is masked; that is not the Trainer's doing."""
    modes: list[int] = []

    def before(*_: Any) -> None:
        modes.append(torch.cuda.get_sync_debug_mode())
        torch.cuda.set_sync_debug_mode("default")

    def after(*_: Any) -> None:
        torch.cuda.set_sync_debug_mode(modes.pop())

    model.register_forward_pre_hook(before)
    model.register_forward_hook(after)


def allow_syncs_when_logging(trainer: Trainer) -> None:
    read = trainer.engine.read_log

    def reading() -> dict[str, float]:
        torch.cuda.set_sync_debug_mode("default")
        return read()

    trainer.engine.read_log = reading


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("precision", [{}, {"bf16": True}], ids=["fp32", "bf16"])
@pytest.mark.parametrize("make_model", [tiny_gpt2, tiny_llama, lambda: Plain().float()], ids=["gpt2", "llama", "plain"])
def test_no_host_sync_between_logs(
    make_args: Callable[..., TrainingArguments],
    make_model: Callable[[], nn.Module],
    precision: dict[str, bool],
    accumulation: int,
) -> None:
    model = make_model()
    rows: Any = classification_rows(96)
    if not isinstance(model, Plain):
        rows = token_rows(96)
        forgive_syncs_in_forward(model)
    args = make_args(
        use_cpu=False,
        max_steps=9,
        logging_steps=5,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=accumulation,
        **precision,
    )
    trainer = Trainer(model, args, train_dataset=rows, callbacks=[ForbidSyncs()])
    allow_syncs_when_logging(trainer)
    assert trainer.train().global_step == 9
    assert next(model.parameters()).is_cuda


@pytest.mark.parametrize("precision", [{}, {"bf16": True}, {"fp16": True}], ids=["fp32", "bf16", "fp16"])
def test_resume_is_bit_equal_on_the_gpu(
    make_args: Callable[..., TrainingArguments], tmp_path: Path, precision: dict[str, bool]
) -> None:
    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = control.should_save = state.global_step == 5

    def build(folder: str, *callbacks: TrainerCallback) -> Trainer:
        args = make_args(
            use_cpu=False,
            max_steps=10,
            per_device_train_batch_size=4,
            learning_rate=1e-2,
            save_strategy="steps",
            output_dir=str(tmp_path / folder),
            full_determinism=True,
            **precision,
        )
        return Trainer(tiny_gpt2(), args, train_dataset=token_rows(24), callbacks=list(callbacks))

    straight = build("straight")
    straight.train()
    build("cut", Stop()).train()
    resumed = build("cut")
    resumed.train(resume_from_checkpoint=True)
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_cuts_agree_on_the_gpu(make_args: Callable[..., TrainingArguments]) -> None:
    rows = classification_rows(16, dtype=torch.float64)
    weights = []
    for size, accumulation in ((16, 1), (4, 4), (5, 4)):
        model = Plain().double()
        args = make_args(
            use_cpu=False,
            max_steps=5,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulation,
            learning_rate=1e-2,
            train_sampling_strategy="sequential",
        )
        Trainer(model, args, train_dataset=rows).train()
        weights.append(model.state_dict())
    for other in weights[1:]:
        for name, value in weights[0].items():
            torch.testing.assert_close(other[name], value, rtol=1e-10, atol=1e-12)


def test_labels_already_on_the_gpu(make_args: Callable[..., TrainingArguments]) -> None:
    """A collator that puts batches on the device: counts stay there, too."""

    def collate(rows: list[Any]) -> dict[str, torch.Tensor]:
        return {key: torch.stack([row[key] for row in rows]).cuda() for key in rows[0]}

    rows = token_rows(16, empty_row=True)
    losses = []
    for size, accumulation in ((16, 1), (1, 16)):
        args = make_args(
            use_cpu=False,
            max_steps=2,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulation,
            logging_steps=1,
            train_sampling_strategy="sequential",
            dataloader_pin_memory=False,
        )
        trainer = Trainer(tiny_llama(), args, train_dataset=rows, data_collator=collate)
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_profile_writes_a_trace_and_a_memory_snapshot(make_args: Callable[..., TrainingArguments]) -> None:
    args = make_args(use_cpu=False, max_steps=6, profile="steps 3-4", skip_memory_metrics=False)
    output = Trainer(Plain().float(), args, train_dataset=classification_rows(16)).train()
    folder = Path(str(args.output_dir)) / "profile"
    assert any(
        "cuda" in str(event.get("name", "")).lower()
        for event in json.loads((folder / "trace.json").read_text())["traceEvents"]
    )
    assert (folder / "memory_snapshot.pickle").stat().st_size > 0
    assert "train_mem_gpu_peaked_delta" in output.metrics


@pytest.mark.parametrize(
    "setting",
    [
        {"torch_compile": True},
        {"tf32": True},
        {"optim": "auto"},
        {"dataloader_num_workers": 2},
        {"bf16_full_eval": True},
    ],
)
def test_settings_run(make_args: Callable[..., TrainingArguments], setting: dict[str, Any]) -> None:
    args = make_args(use_cpu=False, max_steps=4, learning_rate=1e-2, **setting)
    trainer = Trainer(Plain().float(), args, train_dataset=classification_rows(32), eval_dataset=classification_rows(8))
    assert trainer.train().global_step == 4
    assert trainer.evaluate()["eval_loss"] > 0
