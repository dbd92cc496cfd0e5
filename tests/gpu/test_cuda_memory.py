"""Batches that really do not fit into a GPU's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unprepared import Unprepared
from trainwright import Trainer, TrainingArguments

pytestmark = pytest.mark.gpu

LENGTH, ROWS, BATCH = 512, 256, 128


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Leave the process four gigabytes."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(4 * 2**30 / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=8000,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=LENGTH,
    )
    return transformers.LlamaForCausalLM(config)


def texts(lengths: list[int]) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    rows = []
    for length in lengths:
        ids = torch.randint(1, 8000, (length,), generator=generator)
        rows.append({"input_ids": ids, "labels": ids})
    return rows


def padded(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    longest = max(len(sample["input_ids"]) for sample in samples)
    ids = torch.zeros(len(samples), longest, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    mask = torch.zeros_like(ids)
    for row, sample in enumerate(samples):
        length = len(sample["input_ids"])
        ids[row, :length] = sample["input_ids"]
        labels[row, :length] = sample["labels"]
        mask[row, :length] = 1
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def losses(folder: Path, data: Any, kind: type[Trainer] = Trainer, **more: Any) -> tuple[list[float], Trainer]:
    values: dict[str, Any] = {"max_steps": 6, "learning_rate": 1e-3, "logging_steps": 1, "bf16": True, **more}
    args = TrainingArguments(str(folder), disable_tqdm=True, save_strategy="no", **values)
    trainer = kind(llama(), args, train_dataset=data, data_collator=padded)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], trainer


def test_a_batch_that_does_not_fit_has_the_loss_curve_of_one_that_does(
    tmp_path: Path, little_memory: None, caplog: pytest.LogCaptureFixture
) -> None:
    data = texts([LENGTH] * ROWS)
    with pytest.raises(torch.OutOfMemoryError):
        losses(tmp_path / "off", data, per_device_train_batch_size=BATCH)
    torch.cuda.empty_cache()
    small, _ = losses(tmp_path / "small", data, per_device_train_batch_size=4, gradient_accumulation_steps=BATCH // 4)
    with caplog.at_level("INFO"):
        cut, trainer = losses(tmp_path / "auto", data, per_device_train_batch_size=BATCH, micro_batch="auto")
    assert 1 < trainer._present_run().micro.parts < BATCH
    assert "is done again" not in caplog.text, "the look before the first step was too hopeful"
    assert cut == pytest.approx(small, rel=2e-3)
    assert trainer.state.log_history[0]["micro_batch"] == BATCH // trainer._present_run().micro.parts


def test_a_rare_long_batch_is_done_again_in_pieces(
    tmp_path: Path, little_memory: None, caplog: pytest.LogCaptureFixture
) -> None:
    lengths = [64] * ROWS
    lengths[3 * 64 : 4 * 64] = [LENGTH] * 64
    data = texts(lengths)
    # Without making logits it would fit.
    common = {"train_sampling_strategy": "sequential", "max_steps": 4, "acceleration": "off"}

    small, _ = losses(tmp_path / "a", data, per_device_train_batch_size=4, gradient_accumulation_steps=16, **common)
    with caplog.at_level("INFO"):
        cut, trainer = losses(
            tmp_path / "b", data, Unprepared, per_device_train_batch_size=64, micro_batch="auto", **common
        )
    assert "Step 4 did not fit into memory; it is done again" in caplog.text
    assert cut == pytest.approx(small, rel=2e-3)
    assert trainer.state.global_step == 4


def test_evaluation_is_cut_on_its_own(tmp_path: Path, little_memory: None) -> None:
    data = texts([LENGTH] * 128)

    def evaluated(**more: Any) -> float:
        args = TrainingArguments(str(tmp_path), disable_tqdm=True, bf16=True, **more)
        return Trainer(llama(), args, data_collator=padded).evaluate(data)["eval_loss"]

    fits: Callable[..., float] = evaluated
    expected = fits(per_device_eval_batch_size=4)
    torch.cuda.empty_cache()
    with pytest.raises(torch.OutOfMemoryError):
        fits(per_device_eval_batch_size=128)
    torch.cuda.empty_cache()
    assert fits(per_device_eval_batch_size=128, micro_batch="auto") == pytest.approx(expected, rel=1e-3)
