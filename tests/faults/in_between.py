"""Runs that end while something is in flight: data that is read again after a resume, a save in the background."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tests.faults.leaving import contents
from tests.faults.runner import Net, build, fingerprint, forked, rows, trained
from tests.faults.signalled import child
from trainwright import Trainer, TrainerCallback

#: A row takes so long that reading up to the place again takes a minute.
SLOW = 2.5


class Stream(IterableDataset[Any]):
    """Without a state of its own: a resumed run reads it again."""

    def __init__(self, here: Path | None) -> None:
        self.here = here

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        part, parts = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for row in rows(96)[part::parts]:
            if self.here is not None:
                self.here.touch()
                time.sleep(SLOW)
            yield row


def streamed(folder: Path, slow: bool = False, **extra: Any) -> Trainer:
    trainer = build(folder / "run", lr_scheduler_type="constant", **extra)
    return Trainer(Net(), trainer.args, train_dataset=Stream(folder / "here" if slow else None))


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.01)


def read_again(folder: Path, number: int = signal.SIGTERM, **extra: Any) -> dict[str, Any]:
    """Six steps, and a signal while the second process looks for its place."""
    folder.mkdir(parents=True)

    def work(slow: bool = False, **more: Any) -> str:
        torch.set_num_threads(1)
        trainer = streamed(folder, slow, **extra, **more)
        trainer.train()
        return fingerprint(trainer)

    assert forked(lambda: work(max_steps=6)) == 0
    checkpoint = folder / "run/checkpoint-6"
    before = contents(folder / "run"), os.stat(checkpoint).st_ino

    def slowly() -> None:
        work(slow=True)

    pid = child(slowly)
    wait_for(folder / "here")
    time.sleep(0.2)
    began = time.monotonic()
    os.kill(pid, number)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    seconds = time.monotonic() - began
    untouched = before == (contents(folder / "run"), os.stat(checkpoint).st_ino)
    marker = json.loads((folder / "run/preempted.json").read_text())
    said = json.loads((folder / "run/events.jsonl").read_text().splitlines()[-1])
    assert forked(work, folder / "end") == 0
    os.rename(folder / "run", folder / "was")
    assert forked(work, folder / "straight") == 0
    return {
        "code": code,
        "seconds": seconds,
        "untouched": untouched,
        "marker": marker,
        "said": said["message"],
        "is_equal": (folder / "end").read_text() == (folder / "straight").read_text(),
    }


class TellsAt(TrainerCallback):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 8:
            (self.folder / "here").touch()
            time.sleep(60)


class Begins(TrainerCallback):
    step = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.step = state.global_step


def killed_in_a_save(folder: Path) -> dict[str, Any]:
    """The save of step 6 does not end; at step 8 the process is killed."""
    folder.mkdir(parents=True)
    real = os.write

    def write(descriptor: int, data: Any) -> int:
        is_of_six = "checkpoint-6" in os.readlink(f"/proc/self/fd/{descriptor}")
        if is_of_six and threading.current_thread() is not threading.main_thread():
            (folder / "saving").touch()
            time.sleep(60)
        return real(descriptor, data)

    def work() -> None:
        os.write = write  # type: ignore[assignment]
        build(folder / "run", [TellsAt(folder)]).train()

    pid = child(work)
    wait_for(folder / "saving")
    wait_for(folder / "here")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    there = sorted(path.name for path in (folder / "run").glob("*checkpoint-*"))

    def again() -> str:
        begins = Begins()
        trainer = build(folder / "run", [begins])
        trainer.train()
        return json.dumps({"first": begins.step, "end": fingerprint(trainer)})

    assert forked(again, folder / "answer") == 0
    answer = json.loads((folder / "answer").read_text())
    return {"there": there, **answer, "straight": trained(folder / "straight")}


CASES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "read again": read_again,
    "read again, by Ctrl-C": lambda folder: read_again(folder, signal.SIGINT),
    "read again by workers": lambda folder: read_again(folder, dataloader_num_workers=2),
    "killed in a save": killed_in_a_save,
}


def results(root: Path, names: list[str]) -> dict[str, Any]:
    # Once here, so that the children find everything imported.
    trained(root / "warm-up")
    return {name: CASES[name](root / name.replace(" ", "-").replace(",", "")) for name in names}
