"""Strategies on one GPU: FSDP2 of one process with NCCL, and two processes that share the GPU through gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models import tiny_llama, token_rows
from trainwright import Trainer, TrainingArguments

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
MakeArgs = Callable[..., TrainingArguments]
ROOT = Path(__file__).parents[2]


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    state = trainer.model.state_dict().items()
    return {name: (t.full_tensor() if hasattr(t, "full_tensor") else t).cpu().clone() for name, t in state}


def run(folder: Path, *, resume: Any = None, **more: Any) -> dict[str, torch.Tensor]:
    values: dict[str, Any] = {
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-3,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        **more,
    }
    torch.manual_seed(0)
    trainer = Trainer(tiny_llama(), TrainingArguments(str(folder), **values), train_dataset=token_rows(64))
    trainer.train(resume_from_checkpoint=resume)
    return weights_of(trainer)


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name].float() - other[name].float()).abs().max()) for name in one)


def test_fsdp_of_one_process(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain")
    for name, options in {
        "full": {},
        "offload": {"fsdp_config": {"cpu_offload": True}},
        "recomputed": {"fsdp_config": {"activation_checkpointing": True}},
        "kept": {"fsdp": "shard_grad_op"},
        "compiled": {"torch_compile": True, "torch_compile_backend": "aot_eager"},
        "unclipped": {"max_grad_norm": 0.0},
    }.items():
        expected = plain if name != "unclipped" else run(tmp_path / "plain-unclipped", max_grad_norm=0.0)
        backend = {} if "fsdp" in options else {"backend": "fsdp"}
        assert distance(run(tmp_path / name, **backend, **options), expected) < 1e-4, name
    # Weights stay fp32, blocks compute in bf16.
    assert 0 < distance(run(tmp_path / "bf16", backend="fsdp-bf16"), plain) < 0.05


def test_fsdp_resumes_exactly(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 2, "backend": "fsdp-bf16"}
    whole = run(tmp_path / "run", **saving)
    resumed = run(tmp_path / "run", resume=str(tmp_path / "run" / "checkpoint-2"), **saving)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_bad_step_does_not_reach_sharded_weights(tmp_path: Path) -> None:
    rows = token_rows(64)
    for row in rows[:8]:
        row["input_ids"] = row["input_ids"].clone()

    class Breaks(Trainer):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            return loss * float("nan") if self.state.global_step == 1 else loss

    values = {"max_steps": 3, "save_strategy": "no", "disable_tqdm": True, "per_device_train_batch_size": 4}
    trainer = Breaks(tiny_llama(), TrainingArguments(str(tmp_path), backend="fsdp", **values), train_dataset=rows)
    trainer.train()
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights_of(trainer).values())


def test_two_processes_share_a_gpu(tmp_path: Path) -> None:
    script, way = Path(__file__).with_name("sharing.py"), "ddp"
    results = []
    for processes in (1, 2):
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command = [sys.executable, *(torchrun if processes > 1 else []), str(script), way, str(tmp_path)]
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        results.append(json.loads((tmp_path / f"{way}-{processes}.json").read_text()))
    assert results[1]["first"] == pytest.approx(results[0]["first"], abs=1e-4)
    assert results[1]["last"] == pytest.approx(results[0]["last"], abs=1e-4)
    assert results[1]["resumed"] == results[1]["last"]
