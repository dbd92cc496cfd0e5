"""A batch shared among several devices of one host; the CPU shows itself as several."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.jax

SCRIPT = """
import json, sys
import torch
from tests.engines.contract.engines import Lively, arguments, rows
from tests.engines.contract.zoo import MODELS
from trainwright import Trainer
from trainwright.engines.jax.framework import JaxFramework

devices, size, kind, resume = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] == "resume"
seen = set()
shared = JaxFramework.shared
def watched(self, tensor):
    array = shared(self, tensor)
    seen.add((len(array.sharding.device_set), array.sharding.is_fully_replicated))
    return array
JaxFramework.shared = watched
model, data = (Lively(), rows(30)) if kind == "lively" else MODELS[kind]()
args = arguments("run", "jax", engine_devices=devices, per_device_train_batch_size=size, max_steps=6, save_steps=3,
    save_strategy="steps", per_device_eval_batch_size=2, gradient_checkpointing=kind == "gpt2")
trainer = Trainer(model, args, train_dataset=data, eval_dataset=data)
trainer.train(resume_from_checkpoint="run/checkpoint-3" if resume else None)
print(json.dumps({
    "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
    "eval_loss": trainer.evaluate()["eval_loss"],
    "weights": [float(weight.double().sum()) for weight in model.state_dict().values()],
    "seen": sorted(seen),
}))
"""


def run(folder: Path, *words: object, devices: int = 4) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    root = str(Path(__file__).parents[3])
    environment = {
        **os.environ,
        "PYTHONPATH": root,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, words)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def found(folder: Path, *words: object) -> dict:
    done = run(folder, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", ["lively", "gpt2"])
def test_several_devices_train_what_one_trains(kind: str, tmp_path: Path) -> None:
    """BatchNorm, dropout and a last, smaller batch; and layers computed again. 4 x 2 samples are 1 x 8."""
    one, four = found(tmp_path / "one", 1, 8, kind, "-"), found(tmp_path / "four", 4, 2, kind, "-")
    assert four["losses"] == pytest.approx(one["losses"], rel=1e-5)
    assert four["eval_loss"] == pytest.approx(one["eval_loss"], rel=1e-4)
    assert four["weights"] == pytest.approx(one["weights"], rel=1e-4, abs=1e-4)
    assert [4, False] in four["seen"]
    assert all(count == 1 for count, _ in one["seen"])
    again = found(tmp_path / "four", 4, 2, kind, "resume")
    assert again["weights"] == four["weights"]


def test_more_devices_than_there_are(tmp_path: Path) -> None:
    done = run(tmp_path, 4, 2, "lively", "-", devices=2)
    assert "engine_devices=4, but JAX finds 2 (cpu). To try it on a CPU, set XLA_FLAGS=" in done.stderr
