"""``trainwright estimate`` from outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trainwright.cli.app import app

EXPERIMENT = """
model: {name: mlp, options: {width: 512, layers: 3}}
data: {train: t.csv, target: kind}
training: {per_device_train_batch_size: 8, use_cpu: true}
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("a,b,kind\n" + "\n".join(f"{i},{i * i % 11},{'xy'[i % 2]}" for i in range(64)))
    (tmp_path / "e.yaml").write_text(EXPERIMENT)
    return tmp_path


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


@pytest.mark.slow
def test_a_table_and_whether_it_fits() -> None:
    done = call("estimate", "e.yaml", "--gpus", "64", "--memory", "80")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert "64 GPUs; at once: features 8x2" in lines[0]
    assert any(line.startswith("fsdp full_shard ") and line.endswith("yes") for line in lines)
    small = call("estimate", "e.yaml", "--memory", "0.1")
    assert any(line.startswith("sp ") and line.endswith("no") for line in small.output.splitlines())


def test_json_and_overrides() -> None:
    done = call("estimate", "e.yaml", "--json", "training.per_device_train_batch_size=16", "training.optim=sgd")
    found = json.loads(done.output)
    assert found["batch"]["features"] == [16, 2]
    (one,) = [row for row in found["estimates"] if row["strategy"] == "sp" and not row["recompute"]]
    assert one["allocated"] == sum(one["parts"].values())
    assert "optimizer" not in one["parts"]


def test_nonsense_is_refused() -> None:
    done = call("estimate", "e.yaml", "--memory", "-1")
    assert done.exit_code == 2
    assert "how many GiB" in done.output
