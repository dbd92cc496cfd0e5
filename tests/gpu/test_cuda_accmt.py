"""The ACCMT door on a GPU: its optimizers, a real out-of-memory error, the memory that its Monitor shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.compat.accmt_modules import Shared, hyper, make, samples
from trainwright.compat.accmt import Handler, Monitor
from trainwright.compat.accmt.hyperparameters import Optimizer

pytestmark = pytest.mark.gpu

NAMES = [name for name in vars(Optimizer) if not name.startswith("_") and name != "SparseAdam"]


@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer_takes_steps(name: str, tmp_path: Path) -> None:
    module = Shared()
    hps = hyper(optim={"type": name, "lr": 1e-3})
    assert make(tmp_path, hps).fit(module, samples(), samples(6)).global_step > 0
    assert next(module.model.parameters()).is_cuda


def test_out_of_memory_saves_and_goes_on(tmp_path: Path) -> None:
    class Greedy(Shared):
        calls = 0

        def step(self, batch):  # type: ignore[no-untyped-def, override]
            Greedy.calls += 1
            if Greedy.calls == 4:
                torch.empty(10**14, device="cuda")
            return super().step(batch)

    trainer = make(tmp_path, hyper(), checkpoint_every=None, handlers=Handler.CUDA_OUT_OF_MEMORY)
    with pytest.raises(torch.OutOfMemoryError):
        trainer.fit(Greedy(), samples())
    assert [path.name for path in trainer.checkpoint_path.glob("checkpoint-*")] == ["checkpoint-3"]
    rest = make(tmp_path, hyper(), checkpoint_every=None, resume=True).fit(Shared(), samples())
    whole = make(tmp_path / "whole", hyper(), checkpoint_every=None).fit(Shared(), samples())
    assert rest.global_step == whole.global_step


def test_the_monitor_shows_the_memory_of_the_gpu(tmp_path: Path) -> None:
    trainer = make(tmp_path, hyper(), monitor=Monitor(gpu_utilization=True))
    trainer.fit(Shared(), samples(), samples(6))
    lines = [json.loads(line) for line in (trainer.checkpoint_path / "metrics.jsonl").read_text().splitlines()]
    assert all(line["GPU_0"] > 0 for line in lines if "train_loss" in line and "train_runtime" not in line)
    assert not any("GPU_0" in line for line in lines if "val_loss" in line)
