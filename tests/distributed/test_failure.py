"""Processes that die, fail or are asked to stop, under our launcher and under torchrun: real ones, and what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from trainwright.checkpoint.directory import list_checkpoints

ROOT = Path(__file__).parents[2]
SCRIPT = str(Path(__file__).with_name("launched.py"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
OURS = [sys.executable, "-m", "trainwright", "launch", "--cpu", "-N", "2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("failure")]


def run(*words: Any) -> subprocess.CompletedProcess[str]:
    command = [str(word) for word in words]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)


def weights(folder: Path) -> list[Any]:
    return [json.loads((folder / f"weights-{rank}.json").read_text()) for rank in range(2)]


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run/events.jsonl").read_text().splitlines()]


def attempts(folder: Path) -> int:
    return len((folder / "attempts-0").read_text().splitlines())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Weights of the run that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole")
    done = run(*OURS, SCRIPT, folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return weights(folder)


@pytest.mark.parametrize(
    "launcher",
    [[*OURS, "--max-restarts", "1"], pytest.param([*TORCHRUN, "--max-restarts=1"], marks=pytest.mark.full)],
)
def test_a_killed_process_is_started_again_and_the_run_is_the_same(
    launcher: list[str], tmp_path: Path, whole: list[Any]
) -> None:
    done = run(*launcher, SCRIPT, tmp_path, "SIGKILL", 8, 1)
    assert done.returncode == 0, done.stderr[-3000:]
    assert weights(tmp_path) == whole
    assert attempts(tmp_path) == 2
    kinds = [event["kind"] for event in events(tmp_path)]
    assert "rescued" not in kinds
    # Step 8 was nobody's last: the run went on from the checkpoint that all had made together.
    assert next(event["message"] for event in events(tmp_path) if event["kind"] == "not_saved").endswith(
        "the run will go on from checkpoint-6."
    )


def test_without_restarts_the_group_goes_down_and_saves_nothing(tmp_path: Path) -> None:
    done = run(*OURS, SCRIPT, tmp_path, "SIGKILL", 8, 1)
    assert done.returncode == 128 + signal.SIGKILL
    assert "Process 1 of the run failed first: SIGKILL." in done.stderr
    # The other one says in a line why it ends: the cause is not there.
    assert "Traceback" not in done.stderr
    assert [path.name for path in list_checkpoints(tmp_path / "run")] == ["checkpoint-3", "checkpoint-6"]
    assert not (tmp_path / "run/preempted.json").exists()


def test_an_error_in_one_process_saves_nothing(tmp_path: Path) -> None:
    """The first process has it, and could save; but without the random numbers of the other."""
    done = run(*OURS, SCRIPT, tmp_path, "error", 8, 0)
    assert done.returncode == 1
    assert done.stderr.count("RuntimeError: out of luck") == 1
    assert [path.name for path in list_checkpoints(tmp_path / "run")] == ["checkpoint-3", "checkpoint-6"]
    assert [event["kind"] for event in events(tmp_path)[-2:]] == ["not_saved", "failed"]


@pytest.mark.full
@pytest.mark.parametrize(("what", "rank"), [("SIGTERM", 1), ("hours", 0)])
def test_a_run_that_was_asked_to_stop_is_not_started_again(
    what: str, rank: int, tmp_path: Path, whole: list[Any]
) -> None:
    command = [*OURS, "--max-restarts", "3", SCRIPT, tmp_path, what, 8, rank]
    done = run(*command)
    assert done.returncode == 75, done.stderr[-3000:]
    assert attempts(tmp_path) == 1
    marker = json.loads((tmp_path / "run/preempted.json").read_text())
    step = marker["step"]
    # Processes hear of each other before each step, so it takes one more.
    assert step in ((8, 9) if what == "SIGTERM" else (1, 2))
    assert marker["code"] == 75
    assert list_checkpoints(tmp_path / "run")[-1].name == marker["checkpoint"] == f"checkpoint-{step}"
    again = run(*command)
    assert again.returncode == 0, again.stderr[-3000:]
    assert weights(tmp_path) == whole
    assert not (tmp_path / "run/preempted.json").exists()


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (signal.SIGTERM, 75),
        pytest.param(signal.SIGUSR1, 75, marks=pytest.mark.full),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.full),
    ],
)
def test_a_signal_to_the_launcher_saves_everywhere(
    sent: signal.Signals, code: int, tmp_path: Path, whole: list[Any]
) -> None:
    command = [*OURS, "--max-restarts", "3", SCRIPT, str(tmp_path), "wait", "5", "0"]
    running = subprocess.Popen(command, env=ENVIRONMENT, cwd=ROOT, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while not all((tmp_path / f"waits-{rank}").exists() for rank in range(2)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        # To the whole group, as a terminal does: it must not count as more than one.
        os.killpg(running.pid, sent)
        (tmp_path / "asked").touch()
        assert running.wait(timeout=60) == code
    finally:
        running.kill()
    assert json.loads((tmp_path / "run/preempted.json").read_text())["code"] == code
    (tmp_path / "happened").touch()
    again = run(*command)
    assert again.returncode == 0, again.stderr[-3000:]
    assert attempts(tmp_path) == 2
    assert weights(tmp_path) == whole


@pytest.mark.full
def test_each_process_goes_on_with_its_own_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRONMENT, "OWN_GENERATOR", "1")
    assert run(*OURS, SCRIPT, tmp_path / "whole").returncode == 0
    assert run(*OURS, SCRIPT, tmp_path / "cut", "SIGTERM", 8, 1).returncode == 75
    assert run(*OURS, SCRIPT, tmp_path / "cut").returncode == 0
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")


def _with_folder(folder: Path) -> list[psutil.Process]:
    """Processes that work for the run in ``folder``, oldest first."""
    found = []
    for process in psutil.process_iter(["cmdline", "create_time", "status"]):
        if str(folder) in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return sorted(found, key=lambda process: process.info["create_time"])


@pytest.mark.full
@pytest.mark.parametrize(("launcher", "killed"), [(OURS, 0), (OURS, 1), (TORCHRUN, 0)])
def test_a_launcher_that_is_killed_leaves_no_process_and_loses_no_step(
    launcher: list[str], killed: int, tmp_path: Path, whole: list[Any]
) -> None:
    """The command itself, or the process under it that looks after the others."""
    command = [*launcher, SCRIPT, str(tmp_path), "wait", "5"]
    started = subprocess.Popen(command, env=ENVIRONMENT, cwd=ROOT, stderr=subprocess.DEVNULL)
    wait_until(lambda: all((tmp_path / f"waits-{rank}").exists() for rank in range(2)))
    _with_folder(tmp_path)[killed].kill()
    time.sleep(0.5)
    (tmp_path / "asked").touch()
    wait_until(lambda: not _with_folder(tmp_path))
    started.wait(timeout=60)
    assert list_checkpoints(tmp_path / "run")[-1].name == "checkpoint-6"
    assert run(*launcher, SCRIPT, tmp_path).returncode == 0
    assert weights(tmp_path) == whole


def wait_until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)
