"""Trains a small model in forked processes that are made to die, and says what became of it as JSON.

    python tests/faults/runner.py crash FOLDER [K ...]     exit at the k-th disk operation of the saves, then resume
    python tests/faults/runner.py count FOLDER             how many such operations there are
    python tests/faults/runner.py kill FOLDER SEED TIMES   SIGKILL at random moments, resume until done

A process of its own, since forking is safe only in a process without other threads.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainwright import Trainer, TrainerCallback, TrainingArguments

STEPS = 12


class Net(nn.Module):
    """Dropout and running statistics: both must survive."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def rows(count: int = 22) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        {"x": torch.randn(6, generator=generator), "labels": torch.randint(0, 3, (), generator=generator)}
        for _ in range(count)
    ]


class At(TrainerCallback):
    """Does something after step 5."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 5:
            self.work()


class Slow(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep(0.02)


def build(
    folder: Path,
    callbacks: list[Any] | None = None,
    *,
    eval_dataset: Any = None,
    compute_metrics: Any = None,
    **extra: Any,
) -> Trainer:
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": STEPS,
        "per_device_train_batch_size": 4,
        "save_steps": 3,
        "save_total_limit": 2,
        "logging_steps": 2,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "cosine",
        "disable_tqdm": True,
        "use_cpu": True,
        "resume": "auto",
        "log_level": "warning",
        **extra,
    }
    return Trainer(
        Net(),
        TrainingArguments(**settings),
        train_dataset=rows(),
        eval_dataset=eval_dataset,
        compute_metrics=compute_metrics,
        callbacks=callbacks,
    )


def fingerprint(trainer: Trainer) -> str:
    """Weights, optimizer and logged losses."""
    digest = hashlib.sha256()
    for name, tensor in sorted(trainer.model.state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    for _, entries in sorted(trainer.optimizer.state_dict()["state"].items()):
        for key, value in sorted(entries.items()):
            digest.update(key.encode() + torch.as_tensor(value).numpy().tobytes())
    losses = [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    digest.update(json.dumps(losses).encode())
    return digest.hexdigest()


def trained(folder: Path, **extra: Any) -> str:
    # The last bit of a sum depends on how many threads share it.
    torch.set_num_threads(1)
    trainer = build(folder, **extra)
    trainer.train()
    return fingerprint(trainer)


def forked(work: Callable[[], str | None], answer: Path | None = None) -> int:
    """Run ``work`` in a child; its answer goes to a file. Returns the exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        try:
            result = work()
            if answer is not None and result is not None:
                answer.write_text(result)
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(99)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


class Countdown:
    """Counts what saves do to the disk; at the ``last``-th operation the process is gone, half a write behind it."""

    COUNTED = ("open", "write", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir")

    def __init__(self, last: int | None = None) -> None:
        self.last, self.done = last, 0
        self.log: list[tuple[str, str]] = []
        self._files: dict[int, str] = {}
        self._real = {name: getattr(os, name) for name in self.COUNTED}
        for name in self.COUNTED:
            setattr(os, name, self._wrapped(name))

    def _wrapped(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(first: Any, *rest: Any, **options: Any) -> Any:
            where = self._files.get(first, "") if isinstance(first, int) else str(os.fspath(first))
            if options.get("dir_fd") is not None:
                where = os.path.join(self._files.get(options["dir_fd"], ""), where)
            counted = "checkpoint-" in where
            if counted:
                self.done += 1
                self.log.append((name, where))
                if self.done == self.last:
                    if name == "write":
                        real(first, bytes(rest[0])[: len(rest[0]) // 2])
                    os._exit(77)
            result = real(first, *rest, **options)
            if name == "open":
                self._files[result] = where
            return result

        return call


def count(folder: Path) -> dict[str, Any]:
    def work() -> str:
        countdown = Countdown()
        trained(folder / "counted")
        return json.dumps(countdown.log)

    assert forked(work, folder / "log.json") == 0
    return {"operations": json.loads((folder / "log.json").read_text())}


def crash(folder: Path, points: list[int]) -> dict[str, Any]:
    assert forked(lambda: trained(folder / "straight"), folder / "straight.txt") == 0
    straight = (folder / "straight.txt").read_text()
    results = []
    for point in points:
        run, answer = folder / f"run-{point}", folder / "answer.txt"

        def die(point: int = point, run: Path = run) -> str:
            Countdown(point)
            return trained(run)

        first = forked(die)
        second = forked(lambda run=run: trained(run), answer)
        leftovers = sorted(path.name for path in run.glob(".checkpoint-*"))
        results.append(
            {
                "point": point,
                "first": first,
                "second": second,
                "equal": second == 0 and answer.read_text() == straight,
                "leftovers": leftovers,
            }
        )
        shutil.rmtree(run)
        answer.unlink(missing_ok=True)
    return {"results": results}


def kill(folder: Path, seed: int, times: int) -> dict[str, Any]:
    """Kill ``times`` processes at random moments; runs that come to their end start again in another folder."""
    rng = random.Random(seed)
    assert forked(lambda: trained(folder / "straight", save_steps=1), folder / "straight.txt") == 0
    straight = (folder / "straight.txt").read_text()
    kills, ends, wrong, number = 0, 0, [], 0
    while kills < times or ends == 0:
        run, answer = folder / f"run-{number}", folder / f"answer-{number}.txt"
        child = os.fork()
        if child == 0:
            try:
                trainer = build(run, callbacks=[Slow()], save_steps=1)
                trainer.train()
                answer.write_text(fingerprint(trainer))
                os._exit(0)
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(99)
        if kills < times:
            time.sleep(rng.uniform(0.0, 0.5))
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        kills += code == -signal.SIGKILL
        if code == 0:
            ends += 1
            if answer.read_text() != straight:
                wrong.append(number)
            number += 1
        elif code != -signal.SIGKILL:
            wrong.append(f"exit code {code}")
            break
    return {"kills": kills, "ends": ends, "wrong": wrong}


def main() -> None:
    torch.set_num_threads(1)
    what, folder, *rest = sys.argv[1:]
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    numbers = [int(word) for word in rest]
    # Once here, so that the children find everything imported.
    trained(root / "warm-up")
    actions: dict[str, Callable[[], dict[str, Any]]] = {
        "count": lambda: count(root),
        "crash": lambda: crash(root, numbers),
        "kill": lambda: kill(root, *numbers),
    }
    # Training prints its summary; the last line is the answer.
    print(json.dumps(actions[what]()))


if __name__ == "__main__":
    main()
