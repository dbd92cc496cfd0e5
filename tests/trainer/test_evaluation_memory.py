"""Memory of prediction: bounded with a streaming metric, linear without."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from trainwright import EvalPrediction, Trainer, TrainingArguments

pytestmark = pytest.mark.slow


class Cheap(nn.Module):
    """A thousand logits for next to no work."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self.weight.sum(), "logits": x.expand(-1, 1000) * self.weight}


class Indexed(Dataset[dict[str, Tensor]]):
    def __init__(self, count: int) -> None:
        self.x = torch.arange(count, dtype=torch.float32)[:, None]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.x[index], "labels": torch.tensor(index % 2)}


class Mean:
    """A streaming metric: update, compute, reset."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.total, self.count = 0.0, 0

    def update(self, predictions: Tensor, labels: Tensor) -> None:
        self.total += float(predictions[:, 0].double().sum())
        self.count += len(labels)

    def compute(self) -> float:
        return self.total / self.count


def peak_bytes(call: Callable[[], Any]) -> tuple[int, Any]:
    """How far the process's resident memory rose above where it stood, arrays and tensors alike."""

    def resident(line: str) -> int:
        return next(int(text.split()[1]) for text in STATUS.read_text().splitlines() if text.startswith(line)) * 1024

    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident("VmRSS")
    result = call()
    return resident("VmHWM") - before, result


STATUS = Path("/proc/self/status")
COUNT, MB = 20_000, 2**20


def measured(run_in: str) -> dict[str, Any]:
    """Peaks of the three ways to predict, and what each returned. Runs in a process of its own."""
    args = TrainingArguments(run_in, per_device_eval_batch_size=100, report_to="none", disable_tqdm=True, use_cpu=True)
    Trainer(Cheap(), args, compute_metrics=Mean()).predict(Indexed(1000))  # what torch allocates once
    streamed, output = peak_bytes(lambda: Trainer(Cheap(), args, compute_metrics=Mean()).predict(Indexed(COUNT)))
    assert output.metrics["test_mean"] == (COUNT - 1) / 2
    assert output.predictions is None

    total = 0

    def count(prediction: EvalPrediction, compute_result: bool) -> dict[str, float]:
        nonlocal total
        total += len(prediction.label_ids)
        return {"count": total}

    args.batch_eval_metrics = True
    batched, output = peak_bytes(lambda: Trainer(Cheap(), args, compute_metrics=count).predict(Indexed(COUNT)))
    assert output.metrics["test_count"] == COUNT

    args.batch_eval_metrics = False

    def mean(prediction: EvalPrediction) -> dict[str, float]:
        return {"mean": prediction.predictions[:, 0].mean()}

    kept, output = peak_bytes(lambda: Trainer(Cheap(), args, compute_metrics=mean).predict(Indexed(COUNT)))
    assert output.predictions.shape == (COUNT, 1000)
    return {"streamed": streamed, "batched": batched, "kept": kept, "predictions": output.predictions.nbytes}


def test_memory_is_bounded_with_a_streaming_metric_and_linear_without(tmp_path: Path) -> None:
    """In a new process: one that ran other tests holds freed memory, which would hide a rise."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        peak = fresh.submit(measured, str(tmp_path)).result()
    assert peak["streamed"] < 20 * MB
    assert peak["batched"] < 20 * MB
    assert peak["predictions"] < peak["kept"] < 2.5 * peak["predictions"]
