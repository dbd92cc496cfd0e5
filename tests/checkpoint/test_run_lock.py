"""The lock of a run directory within one process, and files in its place that somebody else put there."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults import runner
from tests.faults.runner import At
from trainwright import Trainer
from trainwright.checkpoint import run_lock
from trainwright.checkpoint.run_lease import FILE as LEASE
from trainwright.checkpoint.run_lease import Lease, read_lease, sign_of_life, write_lease
from trainwright.checkpoint.run_lock import FILE as LOCK
from trainwright.checkpoint.run_lock import holding, take
from trainwright.core.errors import Preempted, RunTakenOver

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _short_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "BEAT_SECONDS", 0.25)


def build(folder: Path, work: Callable[[], Any] | None = None, **extra: Any) -> Trainer:
    return runner.build(folder, [] if work is None else [At(work)], **extra)


def events(folder: Path) -> list[str]:
    path = folder / "events.jsonl"
    return [json.loads(line)["kind"] for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.01)


def lock_in_another_process(folder: Path) -> str:
    """What another process says when it tries to take the folder."""
    script = (
        "import sys; from pathlib import Path; from trainwright.checkpoint import run_lock\n"
        "run_lock.BEAT_SECONDS = 0.1\n"
        "try:\n    run_lock.take(Path(sys.argv[1])).release(); print('taken')\n"
        "except ValueError as error:\n    print(error)"
    )
    command = [sys.executable, "-c", script, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def test_a_second_trainer_in_a_callback_is_refused_and_the_first_one_goes_on(tmp_path: Path) -> None:
    def train_there_too() -> None:
        (tmp_path / "link").symlink_to(tmp_path / "run")
        for folder in ("run", "link", "other/../run"):
            with pytest.raises(ValueError, match="another Trainer of this process has been training there since"):
                build(tmp_path / folder).train()

    (tmp_path / "other").mkdir()
    trainer = build(tmp_path / "run", train_there_too)
    trainer.train()
    assert trainer.state.global_step == 12
    assert [kind for kind in events(tmp_path / "run") if kind != "deleted"] == ["saved"] * 4


class Broken(Exception):
    pass


def fail() -> None:
    raise Broken


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "raised"),
    [
        (fail, Broken),
        (lambda: signal.raise_signal(signal.SIGINT), KeyboardInterrupt),
        (lambda: signal.raise_signal(signal.SIGTERM), Preempted),
    ],
)
def test_the_folder_is_free_as_soon_as_train_ends_however_it_ends(
    work: Callable[[], Any], raised: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "BEAT_SECONDS", 60.0)
    first = build(tmp_path, work)
    with pytest.raises(raised):
        first.train()
    assert not (tmp_path / LEASE).exists()
    again = build(tmp_path)
    again.train()
    assert again.state.global_step == 12
    again.train()
    assert not (tmp_path / LEASE).exists()


def test_the_folder_is_free_after_a_training_that_could_not_begin(tmp_path: Path) -> None:
    class NoLoader(Trainer):
        def get_train_dataloader(self) -> Any:
            raise Broken

    given = build(tmp_path)
    with pytest.raises(Broken):
        NoLoader(given.model, given.args, train_dataset=runner.rows()).train()
    with pytest.raises(ValueError, match="is not there"):
        build(tmp_path).train(resume_from_checkpoint=tmp_path / "checkpoint-1")
    build(tmp_path).train()


@pytest.mark.slow
def test_a_lock_that_a_copy_of_the_folder_has_dropped_is_taken_again(tmp_path: Path) -> None:
    """The system drops a record lock when any descriptor of the file is closed."""
    said = []

    def copy_and_try() -> None:
        shutil.copytree(tmp_path / "run", tmp_path / "copy", ignore=shutil.ignore_patterns(".*"))
        said.append(lock_in_another_process(tmp_path / "run"))
        os.unlink(tmp_path / "run" / LOCK)
        said.append(lock_in_another_process(tmp_path / "run"))
        os.unlink(tmp_path / "run" / LEASE)
        wait_for(tmp_path / "run" / LEASE)
        said.append(lock_in_another_process(tmp_path / "run"))

    build(tmp_path / "run", copy_and_try).train()
    assert len(said) == 3
    for text in said:
        assert f"process {os.getpid()} on {socket.gethostname()}" in text
    assert lock_in_another_process(tmp_path / "copy") == "taken\n"


def test_what_another_trainings_lease_says_ends_this_one_without_a_save(tmp_path: Path) -> None:
    other = Lease.new((tmp_path).stat().st_ino, 0.1)

    def taken() -> None:
        write_lease(tmp_path, other)

    with pytest.raises(RunTakenOver, match=rf"taken over by process {os.getpid()} on"):
        build(tmp_path, taken, save_steps=6, logging_steps=100).train()
    assert sorted(path.name for path in tmp_path.glob("*checkpoint-*")) == []
    assert events(tmp_path) == []
    assert (tmp_path / "metrics.jsonl").read_text() == ""
    # And it is still the other one's.
    assert read_lease(tmp_path) == other


@pytest.mark.parametrize("where", ["a save", "the end"])
def test_a_training_that_was_taken_over_a_moment_ago_looks_before_it_changes_anything(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before its next beat."""
    monkeypatch.setattr(run_lock, "BEAT_SECONDS", 60.0)
    steps = 5 if where == "a save" else 100
    before: dict[str, bytes] = {}

    def taken() -> None:
        write_lease(tmp_path, Lease.new(tmp_path.stat().st_ino, 60.0))
        before.update({path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()})

    with pytest.raises(RunTakenOver):
        build(tmp_path, taken, save_steps=steps, save_strategy="steps", max_steps=5, logging_steps=100).train()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def spoil(folder: Path, how: str) -> None:
    path = folder / LEASE
    good = json.loads(json.dumps(vars(Lease.new(folder.stat().st_ino, 0.1))))
    wrong: dict[str, Any] = {
        "numbers": {**good, "pid": 10**30, "beat": 10**30},
        "a group of processes": {**good, "pid": -1, "boot": "x"},
        "no end": {**good, "boot": "x", "seconds_between_beats": float("nan")},
        "words": {**good, "pid": "1", "beat": None},
        "a list": [good],
    }
    if how == "a folder":
        path.mkdir()
    elif how == "a pipe":
        os.mkfifo(path)
    elif how == "a link":
        path.symlink_to("/dev/zero")
    elif how == "huge":
        path.write_bytes(b" " * 10_000_000)
    else:
        path.write_text(json.dumps(wrong[how]) if how in wrong else how)


HOW = ["a folder", "a pipe", "a link", "huge", "{", "", "[" * 5000, "numbers", "a group of processes", "no end"]


@pytest.mark.parametrize("how", [*HOW, "words", "a list"])
def test_a_lease_that_no_training_wrote_keeps_nobody_out(how: str, tmp_path: Path) -> None:
    spoil(tmp_path, how)
    trainer = build(tmp_path)
    trainer.train()
    assert trainer.state.global_step == 12
    assert events(tmp_path).count("not_locked") == (how == "a folder")


def test_a_lease_cannot_make_anybody_wait_for_ever_or_write_to_the_terminal(tmp_path: Path) -> None:
    lease = Lease.new(tmp_path.stat().st_ino, 1e300)
    assert lease.patience == 120
    stored = {**vars(lease), "host": "\x1b[2Jelsewhere" + "x" * 9999, "seconds_between_beats": 1, "began": 1e15}
    (tmp_path / LEASE).write_text(json.dumps(stored))
    there = read_lease(tmp_path)
    assert there is not None
    assert "\x1b" not in str(there)
    assert len(str(there)) < 500


@pytest.mark.slow
@pytest.mark.parametrize("how", ["a folder", "a pipe", "a link", "read-only"])
def test_a_lock_file_that_cannot_be_used_leaves_the_lease(how: str, tmp_path: Path) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    run.mkdir()
    outside.write_text("mine")
    if how == "a folder":
        (run / LOCK).mkdir()
    elif how == "a pipe":
        os.mkfifo(run / LOCK)
    elif how == "a link":
        (run / LOCK).symlink_to(outside)
    else:
        (run / LOCK).touch(mode=0o444)
    said: list[str] = []
    build(run, lambda: said.append(lock_in_another_process(run))).train()
    assert f"process {os.getpid()} on" in said[0]
    assert outside.read_text() == "mine"
    # Somebody who may do everything may also write that.
    assert events(run).count("not_locked") == (how != "read-only" or os.geteuid() != 0)


def test_a_number_that_another_process_has_by_now_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "BEAT_SECONDS", 60.0)
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        lease = Lease.new(tmp_path.stat().st_ino, 60.0)
        write_lease(tmp_path, dataclasses.replace(lease, pid=other.pid, process_began=lease.process_began - 1))
        began = time.monotonic()
        take(tmp_path).release()
        assert time.monotonic() - began < 30
    finally:
        other.kill()
        other.wait()


@pytest.mark.slow
def test_a_folder_that_is_moved_under_a_training_is_followed_by_nobody(tmp_path: Path) -> None:
    """What was moved is free; where the training writes is not."""
    said: list[str] = []

    def move() -> None:
        (tmp_path / "run").rename(tmp_path / "moved")
        # A checkpoint that is being written may have been quicker.
        (tmp_path / "run").mkdir(exist_ok=True)
        wait_for(tmp_path / "run" / LEASE)
        said.append(lock_in_another_process(tmp_path / "run"))
        said.append(lock_in_another_process(tmp_path / "moved"))

    build(tmp_path / "run", move).train()
    assert f"process {os.getpid()} on" in said[0]
    assert said[1] == "taken\n"


@pytest.mark.slow
def test_a_disk_that_takes_no_new_lease_does_not_make_a_training_look_dead(tmp_path: Path) -> None:
    with holding(tmp_path):
        # In the way of the next beat.
        (tmp_path / f".{LEASE}.{os.getpid()}.writing").mkdir()
        first, end = sign_of_life(tmp_path), time.monotonic() + 60
        time.sleep(0.01)
        while sign_of_life(tmp_path) == first:
            assert time.monotonic() < end
            time.sleep(0.01)
        now = read_lease(tmp_path)
        assert now is not None
        time.sleep(0.3)
        assert (read_lease(tmp_path), first is not None and now.token == first[0]) == (now, True)


@pytest.mark.slow
def test_a_forked_process_that_leaves_by_the_trainings_way_out_takes_nothing_along(tmp_path: Path) -> None:
    with holding(tmp_path):
        before = read_lease(tmp_path)
        assert before is not None
        pid = os.fork()
        if pid == 0:
            next(iter(run_lock._held.values())).release()
            os._exit(0)
        os.waitpid(pid, 0)
        after = read_lease(tmp_path)
        assert after is not None
        assert after.token == before.token
        assert "is in use" in lock_in_another_process(tmp_path)
    assert lock_in_another_process(tmp_path) == "taken\n"


@pytest.mark.slow
def test_one_training_at_a_time_in_a_folder_that_is_kept_for_it(tmp_path: Path) -> None:
    with holding(tmp_path):
        build(tmp_path).train()
        assert (tmp_path / LEASE).exists()
        build(tmp_path, max_steps=14).train()
        with pytest.raises(ValueError, match="another Trainer of this process"), holding(tmp_path):
            take(tmp_path)
    assert not (tmp_path / LEASE).exists()
