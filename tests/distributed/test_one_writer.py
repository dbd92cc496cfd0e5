"""Several processes and a folder that another training has: all are refused together, and all leave together."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainwright.checkpoint import run_lock
from trainwright.checkpoint.run_lease import Lease, read_lease, write_lease
from trainwright.checkpoint.run_lock import holding

ROOT = Path(__file__).parents[2]
SCRIPT = str(Path(__file__).with_name("locked.py"))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def wait_for(*paths: Path) -> None:
    end = time.monotonic() + 60
    while not all(path.exists() for path in paths):
        assert time.monotonic() < end, f"{paths} did not appear"
        time.sleep(0.02)


def of_both(folder: Path, name: str) -> list[Path]:
    return [folder / f"{name}-{rank}" for rank in range(2)]


@pytest.mark.full
def test_all_processes_are_refused_let_in_and_thrown_out_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "BEAT_SECONDS", 0.2)
    run = tmp_path / "run"
    run.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with holding(run):
        running = subprocess.Popen([*TORCHRUN, SCRIPT, str(tmp_path)], env=environment, cwd=ROOT)
        wait_for(*of_both(tmp_path, "refused"))
        assert {path.name for path in run.iterdir()} == {"run.lock", "run.lease.json"}
    try:
        texts = {path.read_text() for path in of_both(tmp_path, "refused")}
        assert len(texts) == 1
        assert f"process {os.getpid()} on {socket.gethostname()}" in texts.pop()
        (tmp_path / "free").touch()
        wait_for(*of_both(tmp_path, "trains"))
        # As `--force` does.
        write_lease(run, Lease.new(run.stat().st_ino, 0.2))
        assert running.wait(timeout=60) == 0
    finally:
        running.kill()
    for path in of_both(tmp_path, "out"):
        assert f"was taken over by process {os.getpid()} on" in path.read_text()
    assert list(run.glob("checkpoint-*")) == []
    events = run / "events.jsonl"
    kinds = [json.loads(line)["kind"] for line in events.read_text().splitlines()] if events.exists() else []
    assert not {"stopped", "rescued", "not_saved"} & set(kinds)
    lease = read_lease(run)
    assert lease is not None
    assert lease.pid == os.getpid()
