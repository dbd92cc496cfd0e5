"""A disk that is full, broken or read-only: training goes on, older checkpoints stay whole, and it is said loudly."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.faults import runner
from trainwright import NotSavedError, TrainerCallback, get_last_checkpoint
from trainwright.checkpoint import durable
from trainwright.checkpoint.directory import list_checkpoints
from trainwright.checkpoint.manifest import problems_of
from trainwright.training import finish

ROOT = Path(__file__).parents[2]


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def kinds(folder: Path) -> list[str]:
    return [event["kind"] for event in events(folder)]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "LAST_ATTEMPTS", (0.0, 0.0))
    monkeypatch.setattr("trainwright.checkpoint.saver._WAITS", (0.0, 0.0))


class Faulty:
    """``os`` with a write that fails while ``broken``."""

    def __init__(self, error: OSError) -> None:
        self.error, self.broken = error, False

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, descriptor: int, data: Any) -> int:
        if self.broken:
            # As a full disk does: a part is written, then it fails.
            os.write(descriptor, bytes(data)[:3])
            raise self.error
        return os.write(descriptor, data)


class Break(TrainerCallback):
    """Breaks the disk after one step and, perhaps, mends it after another."""

    def __init__(self, disk: Faulty, at: int, until: int | None = None) -> None:
        self.disk, self.at, self.until = disk, at, until

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.disk.broken = state.global_step >= self.at and (self.until is None or state.global_step < self.until)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), OSError(5, "Input/output error")], ids=str)
def test_training_finishes_and_the_next_save_works_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, caplog: pytest.LogCaptureFixture
) -> None:
    straight = runner.trained(tmp_path / "straight")
    disk = Faulty(error)
    monkeypatch.setattr(durable, "os", disk)
    folder = tmp_path / "run"
    trainer = runner.build(folder, callbacks=[Break(disk, at=4, until=7)], save_in_background=False)
    trainer.train()
    assert runner.fingerprint(trainer) == straight
    assert kinds(folder) == ["saved", "save_failed", "saved", "saved", "deleted"]
    assert "checkpoint-6 was NOT saved" in caplog.text
    assert [path.name for path in list_checkpoints(folder)] == ["checkpoint-9", "checkpoint-12"]
    assert list(folder.glob(".checkpoint-*")) == []


def test_what_could_not_be_saved_at_the_end_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Faulty(OSError(28, "No space left on device"))
    monkeypatch.setattr(durable, "os", disk)
    folder = tmp_path / "run"
    trainer = runner.build(folder, callbacks=[Break(disk, at=7)], save_in_background=False)
    with pytest.raises(NotSavedError, match=r"checkpoint-12 \(the disk is full .* The weights as they are now are in"):
        trainer.train()
    assert kinds(folder)[-2:] == ["lost", "failed"]
    assert "checkpoint-12 was NOT saved" in caplog.text
    # The disk takes what is written in another way: nothing of three days of work is lost.
    (rescued,) = folder.glob("rescued-model-*/model.safetensors")
    assert load_file(rescued).keys() == trainer.model.state_dict().keys()
    assert [path.name for path in list_checkpoints(folder)] == ["checkpoint-3", "checkpoint-6"]
    assert all(problems_of(path) == [] for path in list_checkpoints(folder))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_that_could_not_save_does_not_look_like_one_that_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Exit code 75 tells a scheduler that everything is saved."""
    disk = Faulty(OSError(28, "No space left on device"))
    monkeypatch.setattr(durable, "os", disk)
    folder = tmp_path / "run"

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 8:
                signal.raise_signal(number)

    with pytest.raises(NotSavedError, match=f"was stopped by {number.name}, but .*: checkpoint-8"):
        runner.build(folder, callbacks=[Break(disk, at=7), Stop()], save_in_background=False).train()
    assert kinds(folder)[-2:] == ["lost", "failed"]
    assert not (folder / "preempted.json").exists()
    assert get_last_checkpoint(folder) == str(folder / "checkpoint-6")


def test_what_failed_at_the_end_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Faulty(OSError(28, "No space left on device"))
    monkeypatch.setattr(durable, "os", disk)
    folder = tmp_path / "run"

    class MendedAtLastLog(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if "train_runtime" in logs:
                disk.broken = False

    callbacks = [Break(disk, at=7), MendedAtLastLog()]
    runner.build(folder, callbacks=callbacks, save_in_background=False).train()
    assert kinds(folder)[-1] == "saved_late"
    assert get_last_checkpoint(folder) == str(folder / "checkpoint-12")


def test_too_little_room_is_seen_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    folder = tmp_path / "run"
    with pytest.raises(NotSavedError, match="the disk is full"):
        runner.build(folder).train()
    assert "the disk is full (needs" in caplog.text
    assert list(folder.glob("*checkpoint*")) == []


SCRIPT = """
import resource, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.faults import runner
from trainwright.training import finish
finish.LAST_ATTEMPTS = (0.0,)
runner.torch.set_num_threads(1)
folder = Path({folder!r})
class Limit(runner.TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 4:
            {limit}
runner.build(folder, callbacks=[Limit()], save_in_background=False).train()
print("finished")
"""


def run_script(folder: Path, limit: str, wrapped: Callable[[list[str]], list[str]] = list) -> str:
    script = textwrap.dedent(SCRIPT.format(root=str(ROOT), folder=str(folder), limit=limit))
    done = subprocess.run(
        wrapped([sys.executable, "-c", script]), capture_output=True, text=True, timeout=150, check=False
    )
    # It must not look like a run that could save, to a person or to a scheduler.
    assert done.returncode == 1, done.stderr
    assert "finished" not in done.stdout
    assert "Training came to its end, but this could not be saved: checkpoint-12" in done.stderr.splitlines()[-1]
    return done.stderr


@pytest.mark.slow
def test_a_limit_on_file_sizes(tmp_path: Path) -> None:
    """RLIMIT_FSIZE: the kernel itself refuses what is larger."""
    folder = tmp_path / "run"
    errors = run_script(folder, "resource.setrlimit(resource.RLIMIT_FSIZE, (2500, 2500))")
    assert "checkpoint-6 was NOT saved: File too large" in errors
    assert [path.name for path in list_checkpoints(folder)] == ["checkpoint-3"]
    assert runner.trained(folder) == runner.trained(tmp_path / "straight"), "with room again it goes on exactly"


def on_small_filesystem(tmp_path: Path, limit: str) -> str:
    """What a run says on a tmpfs of its own, to which ``limit`` happens in the middle."""
    mount = tmp_path / "small"
    mount.mkdir()
    inside = f'mount -t tmpfs -o size=4m tmpfs {mount} && exec "$@"'
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside, "sh"]
    trial = subprocess.run([*namespace, "true"], capture_output=True, check=False) if shutil.which("unshare") else None
    if trial is None or trial.returncode:
        pytest.skip("no filesystem can be mounted here; the other tests make single writes fail")
    return run_script(mount / "run", limit, lambda words: [*namespace, *words])


@pytest.mark.slow
def test_a_full_filesystem(tmp_path: Path) -> None:
    free = "__import__('shutil').disk_usage(folder).free - 6000"
    errors = on_small_filesystem(tmp_path, f"(folder / 'ballast').write_bytes(bytes({free}))")
    assert "checkpoint-6 was NOT saved: the disk is full" in errors


@pytest.mark.slow
def test_a_filesystem_that_turns_read_only(tmp_path: Path) -> None:
    command = "['mount', '-o', 'remount,ro', str(folder.parent)]"
    errors = on_small_filesystem(tmp_path, f"__import__('subprocess').run({command}, check=True)")
    assert "checkpoint-6 was NOT saved: Read-only file system" in errors
