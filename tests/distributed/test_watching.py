"""Processes that hang, lag behind or diverge are named: real ones, under torchrun."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = str(Path(__file__).with_name("watching.py"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

pytestmark = pytest.mark.slow


def command(task: str, folder: Path, processes: int) -> list[str]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return [sys.executable, *torchrun, SCRIPT, task, str(folder)]


def run(task: str, folder: Path, processes: int = 2) -> list[dict[str, Any]]:
    done = subprocess.run(
        command(task, folder, processes),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"{task}-{rank}.json").read_text()) for rank in range(processes)]


def stuck(task: str, folder: Path) -> dict[str, Any]:
    """The event of a run that hangs; whatever is left of it is killed."""
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            command(task, folder, 2), env=ENVIRONMENT, stdout=output, stderr=output, cwd=ROOT, start_new_session=True
        )
    file, end = folder / "run/events.jsonl", time.monotonic() + 90
    found: list[dict[str, Any]] = []
    try:
        while not found and time.monotonic() < end and process.poll() is None:
            time.sleep(0.1)
            lines = file.read_text().splitlines() if file.exists() else []
            found = [event for event in map(json.loads, lines) if event["kind"] == "stuck"]
        # A launcher that waits for a stopped process to end has to wait for long.
        code = code_of(process, seconds=20 if task == "no-data" else 0)
    finally:
        end_process(process.pid)
        process.wait()
        for sign in (folder / "run/ranks").glob("*.json"):
            # Workers have sessions of their own; one that is stopped hears nothing but this.
            end_process(json.loads(sign.read_text())["pid"])
    assert len(found) == 1, (folder / "output.txt").read_text()[-4000:]
    return {**found[0], "code": code}


def code_of(process: subprocess.Popen[Any], seconds: float) -> int | None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.poll()


def end_process(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_a_stopped_process_is_named(tmp_path: Path) -> None:
    event = stuck("frozen-1", tmp_path)
    assert event["ranks"] == [1]
    assert event["reported_by"] == 0
    (named,) = event["processes"]
    assert named["step"] == 4
    assert f"rank 1 on {named['host']} (pid {named['pid']}) gives no sign of life any more" in event["message"]
    assert any("stop_myself" in line for line in named["stack"])


@pytest.mark.full
def test_the_next_process_speaks_where_the_first_is_stopped(tmp_path: Path) -> None:
    event = stuck("frozen-0", tmp_path)
    assert event["ranks"] == [0]
    assert event["reported_by"] == 1
    assert "rank 0 on" in (tmp_path / "run/logs/rank-00001.log").read_text()


@pytest.mark.full
def test_a_process_that_waits_for_data_is_named(tmp_path: Path) -> None:
    event = stuck("no-data", tmp_path)
    assert event["ranks"] == [1]
    assert event["phase"] == "waiting for data"
    assert any("sleep_in_the_dataset" in line for line in event["processes"][0]["stack"])
    assert "sleep_in_the_dataset" in event["message"]
    # With watchdog_exit all that live end by themselves, and the launcher could start them again.
    assert event["code"] == 1
    assert "exitcode  : 70" in (tmp_path / "output.txt").read_text()


def test_stragglers_logs_and_signs(tmp_path: Path) -> None:
    first, second = run("slow", tmp_path)
    training = [entry for entry in first["logged"] if "loss" in entry]
    assert len(training) == 3
    for entry in training:
        assert entry["slowest_rank"] == 1
        assert entry["step_seconds_min"] <= entry["step_seconds_mean"] <= entry["step_seconds_max"]
        assert entry["step_seconds_max"] > 0.05
    # The same numbers everywhere, and none in what a checkpoint keeps.
    assert [e["slowest_rank"] for e in second["logged"] if "loss" in e] == [1, 1, 1]
    assert not any("slowest_rank" in entry for entry in first["history"])
    written = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [entry["slowest_rank"] for entry in written if "loss" in entry] == [1, 1, 1]
    assert first["seen"]["ranks"] == ["rank-00000.json", "rank-00001.json"]
    assert not (tmp_path / "run/ranks").exists()
    for rank, found in enumerate((first, second)):
        text = (tmp_path / f"run/logs/rank-{rank:05d}.log").read_text()
        assert f"process {rank} with" in text
        assert "hunter2" not in text
        assert found["handlers"] <= 1


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    answers = run("diverged", tmp_path, processes=3)
    for answer in answers:
        assert answer["step"] == 8
        assert "The weights of rank 2 are not those of the other 2" in answer["error"]
        assert "At step 4 they were the same" in answer["error"]
        assert answer["again"] == 20
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    (event,) = [event for event in events if event["kind"] == "diverged"]
    assert event["ranks"] == [2]
    assert event["parameter"] in answers[0]["error"]
