"""DDP looks through a network's outputs for tensors: stand-ins for logits among them must not disturb it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acceleration.test_runs import told

ROOT = Path(__file__).parents[2]


def trained(folder: Path, wanted: str, unused: str) -> list[dict[str, float]]:
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = str(Path(__file__).with_name("two_processes.py"))
    done: Any = subprocess.run(
        [*command, script, str(folder), wanted, unused],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]


@pytest.mark.full
@pytest.mark.parametrize("unused", ["find", "trust"])
def test_two_processes_train_the_same_without_logits(unused: str, tmp_path: Path) -> None:
    plain = trained(tmp_path / "plain", "off", unused)
    fast = trained(tmp_path / "fast", "logits", unused)
    assert told(tmp_path / "fast")["used"] == ["logits"]
    assert fast[0] == fast[1]
    assert fast[0] == pytest.approx(plain[0], rel=1e-5, abs=1e-4)
