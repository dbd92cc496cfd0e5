"""Trainings that meet in one folder, in forked processes, and what becomes of each; ``forking.py`` runs them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.runner import build, fingerprint, forked, rows, trained
from tests.faults.signalled import child
from trainwright import TrainerCallback
from trainwright.checkpoint import lock_file, run_lease, run_lock
from trainwright.core.errors import RunTakenOver

SHORT, LONG = 0.5, 60.0
GATE = 5
#: So that the one that is cut short and the one that goes on have the same schedule.
LONGER: dict[str, Any] = {"max_steps": 60, "lr_scheduler_type": "constant", "save_steps": 4}
ENDLESS = {**LONGER, "max_steps": 100_000}


class Gate(TrainerCallback):
    """Waits at a step until it is let through."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == GATE:
            (self.folder / "here").touch()
            wait_for(self.folder / "go")


class Endless(TrainerCallback):
    """A long training, in short steps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= GATE:
            (self.folder / "here").touch()
        time.sleep(0.02)


class SlowRows(list):
    """Keeps workers busy."""

    def __getitem__(self, index: Any) -> Any:
        time.sleep(0.02)
        return super().__getitem__(index)


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.01)


def without_locks() -> None:
    """As on network folders whose locks everybody gets."""
    lock_file.LockFile.take = lambda self: True  # type: ignore[method-assign]


def elsewhere() -> None:
    """As if this process ran on another machine."""
    run_lease._boot = lambda: "another-boot"  # type: ignore[assignment]
    run_lease.socket.gethostname = lambda: "elsewhere"


def first(folder: Path, callback: type[Any], before: Callable[[], None] = lambda: None, **extra: Any) -> int:
    """A training that waits in the folder, or goes on for long."""

    def work() -> None:
        before()
        trainer = build(folder / "run", [callback(folder)], **extra)
        if extra.get("dataloader_num_workers"):
            trainer.train_dataset = SlowRows(rows())
        try:
            trainer.train()
            (folder / "first").write_text(fingerprint(trainer))
        except RunTakenOver as error:
            (folder / "first").write_text(str(error))
            os._exit(97)

    pid = child(work)
    wait_for(folder / "here")
    return pid


def second(folder: Path, before: Callable[[], None] = lambda: None, run: str = "run", **extra: Any) -> dict[str, Any]:
    """What becomes of another training there."""
    began = time.monotonic()

    def work() -> str:
        before()
        try:
            return json.dumps({"end": trained(folder / run, **extra)})
        except ValueError as error:
            return json.dumps({"refused": str(error)})

    assert forked(work, folder / "second") == 0
    return {**json.loads((folder / "second").read_text()), "seconds": time.monotonic() - began}


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def record(run: Path) -> dict[str, Any]:
    """What the folder says happened in it."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return {
        "logged": [line["step"] for line in lines if "loss" in line],
        "events": [event["kind"] for event in events],
        "checkpoints": sorted(path.name for path in run.glob("checkpoint-*")),
        "files": sorted(path.name for path in run.iterdir()),
    }


def two_processes(folder: Path, before: Callable[[], None] = lambda: None, **options: Any) -> dict[str, Any]:
    pid = first(folder, Gate, options.get("first", before))
    found = second(folder, before)
    (folder / "go").touch()
    code = ended(pid)
    return {"pid": pid, **found, "code": code, "first": (folder / "first").read_text(), **record(folder / "run")}


def killed(folder: Path, **extra: Any) -> dict[str, Any]:
    """With beats so far apart that a wait for one would be noticed."""
    run_lock.BEAT_SECONDS = LONG
    pid = first(folder, Gate, **extra)
    os.kill(pid, signal.SIGKILL)
    # At once: nobody has asked how it ended.
    found = second(folder)
    return {**found, "code": ended(pid), **record(folder / "run")}


def asked_to_stop_while_it_waits(folder: Path) -> dict[str, Any]:
    """The folder's record is about the other training."""
    run_lock.BEAT_SECONDS = LONG
    pid = first(folder, Gate)

    def wait() -> None:
        real = time.sleep

        def sleep(seconds: float) -> None:
            (folder / "waits").touch()
            real(seconds)

        run_lock.time.sleep = sleep  # type: ignore[assignment]
        trained(folder / "run")

    began = time.monotonic()
    waiting = child(wait)
    wait_for(folder / "waits")
    os.kill(waiting, signal.SIGTERM)
    code, seconds = ended(waiting), time.monotonic() - began
    marked = (folder / "run/preempted.json").exists()
    (folder / "go").touch()
    found = {"waiting": code, "seconds": seconds, "marked": marked, "code": ended(pid)}
    return {**found, "first": (folder / "first").read_text(), **record(folder / "run")}


def copied(folder: Path) -> dict[str, Any]:
    run_lock.BEAT_SECONDS = LONG
    pid = first(folder, Gate)
    # The save behind the training ends when it likes; a half-written checkpoint is nothing to copy.
    wait_for(folder / "run/checkpoint-3")
    shutil.copytree(folder / "run", folder / "copy", ignore=shutil.ignore_patterns(".*"))
    found = second(folder, run="copy")
    (folder / "go").touch()
    code = ended(pid)
    return {**found, "code": code, "first": (folder / "first").read_text(), **record(folder / "run")}


def silent_elsewhere(folder: Path) -> dict[str, Any]:
    """A machine that died: nobody here can know but by waiting."""
    pid = first(folder, Gate, without_locks_elsewhere)
    os.kill(pid, signal.SIGKILL)
    ended(pid)
    return {**second(folder, without_locks), **record(folder / "run")}


def forced(folder: Path, before: Callable[[], None] = lambda: None) -> dict[str, Any]:
    pid = first(folder, Endless, before, **ENDLESS)
    found = second(folder, before, take_over=True, **LONGER)
    before_end = record(folder / "run")
    code = ended(pid)
    after = record(folder / "run")
    return {**found, "code": code, "said": (folder / "first").read_text(), "untouched": before_end == after, **after}


def suspended(folder: Path) -> dict[str, Any]:
    """One that slept while another came, trained to its end, and went."""
    pid = first(folder, Endless, without_locks, **ENDLESS)
    os.kill(pid, signal.SIGSTOP)
    found = second(folder, without_locks, **LONGER)
    before_end = record(folder / "run")
    os.kill(pid, signal.SIGCONT)
    code = ended(pid)
    after = record(folder / "run")
    return {**found, "code": code, "said": (folder / "first").read_text(), "untouched": before_end == after, **after}


def without_locks_elsewhere() -> None:
    without_locks()
    elsewhere()


CASES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "two processes": two_processes,
    "without locks": lambda folder: two_processes(folder, without_locks),
    "without locks, elsewhere": lambda folder: two_processes(folder, without_locks, first=without_locks_elsewhere),
    "killed": killed,
    "killed with workers": lambda folder: killed(folder, dataloader_num_workers=2),
    "asked to stop while it waits": asked_to_stop_while_it_waits,
    "copied": copied,
    "silent elsewhere": silent_elsewhere,
    "forced": forced,
    "forced without locks": lambda folder: forced(folder, without_locks),
    "suspended": suspended,
}


def results(root: Path, names: list[str]) -> dict[str, Any]:
    """What became of the named cases, and of runs that nobody disturbed."""
    before = run_lock.BEAT_SECONDS
    found: dict[str, Any] = {"straight": trained(root / "straight"), "longer": trained(root / "longer", **LONGER)}
    for name in names:
        folder = root / name.replace(" ", "-").replace(",", "")
        folder.mkdir(parents=True)
        run_lock.BEAT_SECONDS = SHORT
        found[name] = CASES[name](folder)
    run_lock.BEAT_SECONDS = before
    return found
