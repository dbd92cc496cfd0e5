"""Runs that are stopped before their first step, that hang, or that are killed, and what they leave."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn

from tests.faults.runner import Net, fingerprint, forked, rows
from tests.faults.signalled import child
from trainwright import Trainer, TrainerCallback, TrainingArguments

LONG = 60.0


class ProcessRank:
    """Where a run stays, in whatever process it is; only the first time."""

    def __init__(self, folder: Path) -> None:
        self.mark = folder / "here"

    def stay(self) -> None:
        if not self.mark.exists():
            self.mark.touch()
            end = time.monotonic() + LONG
            while time.monotonic() < end:
                time.sleep(0.02)


class StayingNet(Net):
    """Stays in forward (after ``steps`` of them), in evaluation, or when it is given weights."""

    def __init__(self, place: ProcessRank | None, where: str, steps: int) -> None:
        super().__init__()
        self.place, self.where, self.steps, self.calls = place, where, steps, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        stays = self.where == "forward" and self.calls > self.steps
        if self.place is not None and (stays if self.training else self.where == "evaluation"):
            self.place.stay()
        return super().forward(x)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        if self.place is not None and self.where == "loading":
            self.place.stay()
        return super().load_state_dict(*args, **kwargs)


class StayingRows:
    """Stays while a row is fetched."""

    def __init__(self, place: ProcessRank | None, index: int = 7) -> None:
        self.rows, self.place, self.index = rows(), place, index

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if self.place is not None and index == self.index:
            self.place.stay()
        return self.rows[index]


class StayingCallback(TrainerCallback):
    def __init__(self, place: ProcessRank, event: str, step: int = 0) -> None:
        self.place, self.step = place, step
        setattr(self, event, self._stay)

    def _stay(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= self.step:
            self.place.stay()


class StayingUpdate(torch.optim.SGD):
    place: ProcessRank | None = None
    steps = 0

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        self.steps += 1
        if self.place is not None and self.steps == 4:
            self.place.stay()
        return super().step(closure)


class SlowLoader(Trainer):
    """Takes long to make its loader."""

    place: ProcessRank | None = None

    def get_train_dataloader(self) -> Any:
        if self.place is not None:
            self.place.stay()
        return super().get_train_dataloader()


def staying_saves(place: ProcessRank) -> None:
    """The third write to a checkpoint does not end."""
    real, count = os.write, 0

    def write(descriptor: int, data: Any) -> int:
        nonlocal count
        count += 1
        if count == 3:
            place.stay()
        return real(descriptor, data)

    os.write = write  # type: ignore[assignment]


def build(folder: Path, place: ProcessRank | None, where: str, **extra: Any) -> Trainer:
    settings: dict[str, Any] = {
        "output_dir": str(folder / "run"),
        "max_steps": 12,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "save_steps": 100,
        "logging_steps": 2,
        "learning_rate": 1e-2,
        "disable_tqdm": True,
        "use_cpu": True,
        "resume": "auto",
        "log_level": "warning",
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "train_sampling_strategy": "sequential",
        **extra,
    }
    hanging = "watchdog_seconds" in extra
    model = StayingNet(place, where, 3 if hanging else 0)
    if "micro_batch" in extra:
        # One row at a time is too few for it.
        model.layers[1] = nn.Identity()
    optimizer = StayingUpdate(model.parameters(), lr=1e-2, momentum=0.9)
    optimizer.place = place if where == "update" else None
    # Row 15 is in the fourth batch.
    data = StayingRows(place if where in ("data", "late data") else None, 15 if hanging or where == "late data" else 2)
    callbacks = [StayingCallback(place, where)] if place is not None and where == "on_init_end" else []
    if place is not None and where == "on_step_end":
        callbacks = [StayingCallback(place, where, 3)]
    kind = SlowLoader if where == "loader" else Trainer
    if kind is SlowLoader:
        SlowLoader.place = place
    if where == "save" and place is not None:
        staying_saves(place)
    return kind(
        model,
        TrainingArguments(**settings),
        train_dataset=data,
        eval_dataset=rows()[:16],
        optimizers=(optimizer, None),
        callbacks=callbacks,
    )


_WORKERS = {"dataloader_num_workers": 2}
_DOG = {"watchdog_seconds": 0.4, "watchdog_exit": True}
_TERM = (signal.SIGTERM,)

#: name -> where it stays, the signals it is sent there, further arguments, and what is called
CASES: dict[str, tuple[str, tuple[int, ...], dict[str, Any], str]] = {
    "while the Trainer is built": ("on_init_end", _TERM, {}, "train"),
    "while the loader is made": ("loader", _TERM, {}, "train"),
    "while the loader is made, usr1": ("loader", (signal.SIGUSR1,), {}, "train"),
    "while the loader is made, hup": ("loader", (signal.SIGHUP,), {}, "train"),
    "three times": ("loader", (signal.SIGTERM,) * 3, {}, "train"),
    "while resuming": ("loading", _TERM, {}, "resume"),
    "while a batch that fits is looked for": (
        "forward",
        _TERM,
        {"micro_batch": "auto", "preemption_deadline": 0.3},
        "train",
    ),
    "while the first batch is fetched": ("data", _TERM, {"preemption_deadline": 0.3}, "train"),
    "while workers fetch the first batch": ("data", _TERM, _WORKERS, "train"),
    "in the first step": ("forward", _TERM, {"preemption_deadline": 0.3, **_WORKERS}, "train"),
    "in evaluate": ("evaluation", _TERM, _WORKERS, "evaluate"),
    "in predict": ("evaluation", _TERM, {}, "predict"),
    "not handled": ("loader", _TERM, {"handle_signals": False}, "train"),
    "hang in a worker": ("data", (), {**_DOG, **_WORKERS}, "train"),
    "hang in forward": ("forward", (), {**_DOG, **_WORKERS}, "train"),
    "hang in a callback": ("on_step_end", (), {**_DOG, **_WORKERS}, "train"),
    "hang in the update": ("update", (), {**_DOG, **_WORKERS}, "train"),
    "hang in a save": ("save", (), {**_DOG, **_WORKERS, "save_steps": 3, "save_in_background": False}, "train"),
    "killed, with a worker in a fetch": ("late data", (signal.SIGKILL,), _WORKERS, "train"),
    "interrupted three times, with a worker in a fetch": ("late data", (signal.SIGINT,) * 3, _WORKERS, "train"),
    "killed, with spawned workers": (
        "late data",
        (signal.SIGKILL,),
        {**_WORKERS, "dataloader_multiprocessing_context": "spawn"},
        "train",
    ),
}


def work(folder: Path, where: str, extra: dict[str, Any], called: str) -> None:
    from trainwright.training import stop

    stop._LAST_SAVE_SECONDS = 2.0  # type: ignore[attr-defined]
    trainer = build(folder, ProcessRank(folder), where, **extra)
    if called == "predict":
        trainer.predict(rows()[:16])  # type: ignore[arg-type]
    else:
        getattr(trainer, "train" if called == "resume" else called)()


def tried(folder: Path, name: str) -> dict[str, Any]:
    where, signals, extra, called = CASES[name]
    folder.mkdir(parents=True)
    if called == "resume":
        assert forked(lambda: finished(folder, where, {"max_steps": 4})) == 0
    before = contents(folder / "run")
    began = time.monotonic()
    pid = child(lambda: work(folder, where, extra, called))
    _wait_for(folder / "here")
    time.sleep(0.2)
    for number in signals:
        # The main process alone, as `kill` does, or a scheduler that knows only that one.
        os.kill(pid, number)
        time.sleep(0.05)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    seconds = time.monotonic() - began
    left = survivors(pid)
    run = folder / "run"
    events = (run / "events.jsonl").read_text().splitlines() if (run / "events.jsonl").exists() else []
    answer = {
        "code": code,
        "seconds": seconds,
        "left": left,
        "saved": sorted(path.name for path in run.glob("checkpoint-*")),
        "events": [[event["kind"], event["message"]] for event in map(json.loads, events)],
        "marker": json.loads((run / "preempted.json").read_text()) if (run / "preempted.json").exists() else None,
        "untouched": {path: before[path] for path in before} == {path: contents(run).get(path) for path in before},
    }
    again = {key: value for key, value in extra.items() if not key.startswith("watchdog")}
    second = forked(lambda: finished(folder, where, again), folder / "answer")
    return {**answer, "end": (folder / "answer").read_text() if second == 0 else None}


class Shows(TrainerCallback):
    """Prints, as a script does, and waits at its fourth step for the terminal to go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 4:
            (self.folder / "here").touch()
            _wait_for(self.folder / "closed")
        print("step", state.global_step, flush=True)


def terminal_closed(folder: Path) -> dict[str, Any]:
    """A run in a terminal, whose window is closed."""
    folder.mkdir()
    pid, terminal = pty.fork()
    if pid == 0:
        end = 98
        try:
            trainer = build(folder, None, "", disable_tqdm=False)
            trainer.add_callback(Shows(folder))
            trainer.train()
            end = 0
        except SystemExit as stop:
            end = int(stop.code or 0)
        finally:
            os._exit(end)
    _wait_for(folder / "here", drain=terminal)
    os.close(terminal)
    (folder / "closed").touch()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    saved = sorted(path.name for path in (folder / "run").glob("checkpoint-*"))
    second = forked(lambda: finished(folder, "", {}), folder / "answer")
    return {"code": code, "saved": saved, "end": (folder / "answer").read_text() if second == 0 else None}


def contents(folder: Path) -> dict[str, str]:
    """Hashes of the checkpoints in a folder."""
    files = [path for path in folder.glob("checkpoint-*/*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def survivors(session: int) -> list[str]:
    """Processes of a session that are still there some seconds after its first one is gone."""
    end = time.monotonic() + 8
    while True:
        left = []
        for process in psutil.process_iter(["pid", "status", "cmdline"]):
            try:
                if os.getsid(process.pid) == session and process.info["status"] != psutil.STATUS_ZOMBIE:
                    left.append(" ".join(process.info["cmdline"] or [])[:80])
            except (ProcessLookupError, psutil.NoSuchProcess, PermissionError):
                continue
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.05)


def finished(folder: Path, where: str, extra: dict[str, Any]) -> str:
    trainer = build(folder, None, where, **extra)
    trainer.train()
    return fingerprint(trainer)


def _wait_for(path: Path, drain: int | None = None) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        if drain is not None and select.select([drain], [], [], 0.01)[0]:
            os.read(drain, 65536)
        time.sleep(0.01)


def results(root: Path, names: list[str]) -> dict[str, Any]:
    """What became of each run; "straight" is the end of one that nothing happens to."""
    root.mkdir(parents=True, exist_ok=True)
    # Once here, so that the children find everything imported.
    finished(root / "warm-up", "", {})
    answer: Callable[[], str] = lambda: finished(root / "straight", "", {})  # noqa: E731
    assert forked(answer, root / "straight.txt") == 0
    answers: dict[str, Any] = {"straight": (root / "straight.txt").read_text()}
    for name in names:
        place = root / name.replace(" ", "-").replace(",", "")
        answers[name] = terminal_closed(place) if name == "a closed terminal" else tried(place, name)
    return answers
