"""Signals that arrive at every kind of moment, in forked processes; prints what became of each run as JSON.

python -m tests.faults.signalled FOLDER CASE...
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.faults.runner import Net, fingerprint, forked, rows
from trainwright import Trainer, TrainingArguments

#: The step (or the row) at which a run waits for its signal.
STEP = 5
NEVER = 10**6


class ProcessRank:
    """Where the run waits: it leaves a mark and goes on when the signals were sent, or, if it must hang, much later."""

    def __init__(self, folder: Path, *, hangs: bool) -> None:
        self.mark, self.sent, self.hangs = folder / "here", folder / "sent", hangs

    def wait(self) -> None:
        self.mark.touch()
        end = time.monotonic() + 60
        while time.monotonic() < end and (self.hangs or not self.sent.exists()):
            time.sleep(0.02)
        time.sleep(0.1)


class WaitingNet(Net):
    """Waits inside forward, in training or in evaluation."""

    def __init__(self, place: ProcessRank | None, *, in_training: bool) -> None:
        super().__init__()
        self.place, self.in_training, self.calls = place, in_training, 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training == self.in_training:
            self.calls += 1
            if self.place is not None and self.calls == STEP:
                self.place.wait()
        return super().forward(x)


class WaitingRows:
    """Waits while a row is fetched."""

    def __init__(self, place: ProcessRank | None) -> None:
        self.rows, self.place = rows(), place

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if self.place is not None and index == 7 and not self.place.mark.exists():
            self.place.wait()
        return self.rows[index]


def build(folder: Path, place: ProcessRank | None, where: str, **extra: Any) -> Trainer:
    settings: dict[str, Any] = {
        "output_dir": str(folder / "run"),
        "max_steps": 12,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "eval_strategy": "steps",
        "eval_steps": 4,
        "save_steps": 100,
        "logging_steps": 3,
        "learning_rate": 1e-2,
        "disable_tqdm": True,
        "use_cpu": True,
        "resume": "auto",
        "log_level": "warning",
        "metric_for_best_model": "loss",
        "greater_is_better": False,
        **extra,
    }
    model = WaitingNet(place if where in ("step", "eval") else None, in_training=where == "step")
    data = WaitingRows(place if where == "data" else None)
    return Trainer(model, TrainingArguments(**settings), train_dataset=data, eval_dataset=rows()[:16])


def slow_writes(place: ProcessRank | None) -> None:
    """The third write to a checkpoint takes as long as ``place`` waits."""
    real, count = os.write, 0

    def write(descriptor: int, data: Any) -> int:
        nonlocal count
        count += 1
        if count == 3 and place is not None:
            place.wait()
        return real(descriptor, data)

    os.write = write  # type: ignore[assignment]


#: name -> where it waits, whether it hangs there, which signals, and further arguments
CASES: dict[str, tuple[str, bool, list[int], dict[str, Any]]] = {
    "term in a step": ("step", False, [signal.SIGTERM], {}),
    "int in a step": ("step", False, [signal.SIGINT], {}),
    "usr1 in a step": ("step", False, [signal.SIGUSR1], {}),
    "hup in a step": ("step", False, [signal.SIGHUP], {}),
    "hup under nohup": ("step", False, [signal.SIGHUP], {}),
    "twice": ("step", False, [signal.SIGTERM, signal.SIGTERM], {}),
    "in evaluation": ("eval", False, [signal.SIGTERM], {}),
    "in a fetch": ("data", False, [signal.SIGTERM], {}),
    "group with workers": ("step", False, [signal.SIGTERM], {"dataloader_num_workers": 2}),
    "interrupt to group with workers": ("step", False, [signal.SIGINT], {"dataloader_num_workers": 2}),
    "while waiting for workers": ("data", True, [signal.SIGTERM], {"dataloader_num_workers": 2}),
    "in a save": ("save", False, [signal.SIGTERM], {"save_steps": 5}),
    "own exit code": ("step", False, [signal.SIGTERM], {"preempted_exit_code": 99}),
    "past the deadline": ("step", True, [signal.SIGTERM], {"preemption_deadline": 0.5}),
    "time is up": ("step", False, [], {"max_hours": 0.3 / 3600}),
    "no saving": ("step", False, [signal.SIGTERM], {"save_strategy": "no"}),
    "no saving but just in time": (
        "step",
        False,
        [signal.SIGTERM],
        {"save_strategy": "no", "enable_jit_checkpoint": True},
    ),
    "not handled": ("step", False, [signal.SIGTERM], {"handle_signals": False}),
}


def child(work: Callable[[], None]) -> int:
    """A forked process in a group of its own, which ends as a script would."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    try:
        work()
        os._exit(0)
    except KeyboardInterrupt:
        os._exit(130)
    except SystemExit as stop:
        os._exit(int(stop.code or 0))
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(98)


def tried(folder: Path, name: str) -> dict[str, Any]:
    where, hangs, signals, extra = CASES[name]
    folder.mkdir(parents=True)
    place = ProcessRank(folder, hangs=hangs)

    def work() -> None:
        if name == "hup under nohup":
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if where == "save":
            slow_writes(place)
        build(folder, place, where, **extra).train()

    pid = child(work)
    if signals:
        _wait_for(place.mark)
    else:
        time.sleep(0.5)
    for number in signals:
        # Schedulers and terminals signal the whole group.
        os.killpg(pid, number)
        time.sleep(0.05)
    place.sent.touch()
    if name == "past the deadline":
        _wait_for(folder / "run" / "checkpoint-4" / "manifest.json")
        os.killpg(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    saved = sorted(path.name for path in (folder / "run").glob("checkpoint-*"))
    events = folder / "run" / "events.jsonl"
    kinds = [json.loads(line)["kind"] for line in events.read_text().splitlines()] if events.exists() else []
    extra = {key: value for key, value in extra.items() if key != "max_hours"}
    second = forked(lambda: _finished(folder, where, extra), folder / "answer")
    answer = json.loads((folder / "answer").read_text()) if second == 0 else {}
    return {"code": code, "saved": saved, "second": second, "events": kinds, **answer}


def _finished(folder: Path, where: str, extra: dict[str, Any]) -> str:
    trainer = build(folder, None, where, **extra)
    trainer.train()
    evaluations = [(e["step"], e["eval_loss"]) for e in trainer.state.log_history if "eval_loss" in e]
    best = trainer.state.best_metric
    return json.dumps({"end": fingerprint(trainer), "evaluations": evaluations, "best": best})


def _wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.01)


def main() -> None:
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    root.mkdir(parents=True, exist_ok=True)
    # Once here, so that the children find everything imported.
    _finished(root / "warm-up", "step", {})
    assert forked(lambda: _finished(root / "straight", "step", {}), root / "straight.json") == 0
    results = {"straight": json.loads((root / "straight.json").read_text())}
    for name in sys.argv[2:] or CASES:
        results[name] = tried(root / name.replace(" ", "-"), name)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
