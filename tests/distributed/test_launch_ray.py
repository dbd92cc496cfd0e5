"""``trainwright launch --on ray``: a real Ray on this machine with two workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = str(Path(__file__).with_name("launched.py"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
OURS = [sys.executable, "-m", "trainwright", "launch", "--cpu", "-N", "2"]
RAY = [*OURS, "--on", "ray"]

pytest.importorskip("ray", reason="the extra 'ray', which make test-full installs")
pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]


def run(*words: Any, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(word) for word in words]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=200, cwd=cwd, check=False)


def weights(folder: Path) -> list[Any]:
    return [json.loads((folder / f"weights-{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Weights of two processes without Ray, to which nothing happens."""
    folder = tmp_path_factory.mktemp("whole")
    done = run(*OURS, SCRIPT, folder, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return weights(folder)


def test_ray_starts_the_workers_again_after_one_was_killed(tmp_path: Path, whole: list[Any]) -> None:
    done = run(*RAY, "--max-restarts", "1", SCRIPT, tmp_path, "SIGKILL", 8, 1, cwd=tmp_path)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert len((tmp_path / "attempts-0").read_text().splitlines()) == 2
    assert weights(tmp_path) == whole
    assert "rescued" not in (tmp_path / "run/events.jsonl").read_text()


def test_a_signal_to_the_launcher_stops_the_workers_and_the_same_command_goes_on(
    tmp_path: Path, whole: list[Any]
) -> None:
    command = [*RAY, "--max-restarts", "2", SCRIPT, str(tmp_path), "wait", "5", "0"]
    with (tmp_path / "log").open("w") as log:
        running = subprocess.Popen(command, env=ENVIRONMENT, cwd=tmp_path, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 120
        while not all((tmp_path / f"waits-{rank}").exists() for rank in range(2)):
            assert running.poll() is None, (tmp_path / "log").read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        ours = [psutil.Process(running.pid), *psutil.Process(running.pid).children(recursive=True)]
        listening = {
            (process.name(), connection.laddr.ip)
            for process in ours
            if process.name() in ("gcs_server", "raylet")
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN and connection.laddr
        }
        running.send_signal(signal.SIGTERM)
        (tmp_path / "asked").touch()
        assert running.wait(timeout=120) == 75, (tmp_path / "log").read_text()[-3000:]
    finally:
        running.kill()
    assert listening
    assert {address for _, address in listening} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
    assert json.loads((tmp_path / "run/preempted.json").read_text())["reason"] in ("the launcher", "another process")
    assert len((tmp_path / "attempts-0").read_text().splitlines()) == 1
    (tmp_path / "happened").touch()
    again = run(*command, cwd=tmp_path)
    assert again.returncode == 0, (again.stdout + again.stderr)[-4000:]
    assert weights(tmp_path) == whole
