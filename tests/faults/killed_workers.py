"""Loader workers that are killed as the kernel does when memory is short, at every kind of moment."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from tests.faults.runner import Net, fingerprint, forked, rows
from trainwright import Trainer, TrainerCallback, TrainingArguments
from trainwright.checkpoint.directory import list_checkpoints

STEP = 5


def workers() -> list[psutil.Process]:
    """Children of this process that are workers of a loader (and not multiprocessing's own helpers)."""
    return [child for child in psutil.Process().children() if "resource_tracker" not in " ".join(child.cmdline())]


class Killer:
    """Kills workers, once, and stays until this process has been told of it."""

    def __init__(self, mark: Path, *, most: int = 1) -> None:
        self.mark, self.most = mark, most

    def __call__(self) -> None:
        if self.mark.exists():
            return
        self.mark.touch()
        for victim in workers()[: self.most]:
            victim.send_signal(signal.SIGKILL)
        # Any of these lines is where torch's own handler would raise.
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            time.sleep(0.01)


class KilledIn(TrainerCallback):
    def __init__(self, kill: Callable[[], None], event: str) -> None:
        self.kill = kill
        setattr(self, event, self._hear)

    def _hear(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == STEP - 1:
            self.kill()


class KillingNet(Net):
    """Kills in its forward pass, in training or in evaluation, or when its gradient comes."""

    def __init__(self, kill: Callable[[], None] | None, where: str) -> None:
        super().__init__()
        self.kill, self.where, self.calls = kill, where, 0

    def forward(self, x: Tensor) -> Tensor:
        answer = super().forward(x)
        self.calls += self.training
        if self.kill is not None and self.calls == STEP:
            if self.training and self.where == "backward":
                answer.register_hook(lambda gradient: self.kill())  # type: ignore[misc]
            elif self.where.startswith("forward" if self.training else "evaluation"):
                self.kill()
        return answer


class KilledUpdate(torch.optim.SGD):
    """Kills after half the weights have changed."""

    kill: Callable[[], None] | None = None
    steps = 0

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        self.steps += 1
        if self.kill is None or self.steps != STEP:
            return super().step(closure)
        kept, group = self.param_groups[0]["params"], self.param_groups[0]
        group["params"] = kept[:2]
        super().step()
        self.kill()
        group["params"] = kept[2:]
        super().step()
        group["params"] = kept
        return None


class OwnLoader(Trainer):
    """Evaluates with torch's own loader."""

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        data: Any = self.eval_dataset
        return DataLoader(data, batch_size=4, num_workers=2, collate_fn=self.data_collator)


class Slow:
    """A row that never comes, in the process whose mark it finds."""

    def __init__(self, mark: Path | None) -> None:
        self.rows, self.mark = rows(48), mark

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if self.mark is not None and index == 21:
            self.mark.touch()
            time.sleep(60)
        return self.rows[index]


def killed_saves(kill: Callable[[], None]) -> None:
    """The third write to a checkpoint, in whichever thread it is, goes on after the kill."""
    real, count = os.write, 0

    def write(descriptor: int, data: Any) -> int:
        nonlocal count
        count += 1
        if count == 3:
            kill()
        return real(descriptor, data)

    os.write = write  # type: ignore[assignment]


def killed_at_start(kill: Callable[[], None]) -> None:
    """A worker dies as soon as the workers of the second epoch have been started."""
    from torch.utils.data._utils import signal_handling

    real, count = signal_handling._set_worker_pids, 0

    def registered(*args: Any) -> None:
        nonlocal count
        real(*args)
        count += 1
        if count == 2:
            kill()

    signal_handling._set_worker_pids = registered  # type: ignore[assignment]


def build(folder: Path, where: str, kill: Callable[[], None] | None, mark: Path | None, **extra: Any) -> Trainer:
    settings: dict[str, Any] = {
        "output_dir": str(folder / "run"),
        "max_steps": 14,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "eval_strategy": "steps",
        "eval_steps": STEP,
        "save_steps": 100,
        "logging_steps": 2,
        "learning_rate": 1e-2,
        "disable_tqdm": True,
        "use_cpu": True,
        "resume": "auto",
        "log_level": "error",
        "dataloader_num_workers": 2,
        "dataloader_prefetch_factor": 1,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        **extra,
    }
    model = KillingNet(kill, where)
    optimizer = KilledUpdate(model.parameters(), lr=1e-2, momentum=0.9)
    optimizer.kill = kill if where == "update" else None
    callbacks = [KilledIn(kill, where)] if kill is not None and where.startswith("on_") else []
    kind = OwnLoader if where == "evaluation by torch's loader" else Trainer
    return kind(
        model,
        TrainingArguments(**settings),
        train_dataset=Slow(mark) if where == "wait" else rows(64 if where.endswith("save") else 28),
        eval_dataset=rows(36)[20:],
        optimizers=(optimizer, None),
        callbacks=callbacks,
    )


#: name -> where, and further arguments
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "in forward": ("forward", {}),
    "in backward": ("backward", {}),
    "in the update": ("update", {}),
    "before the step": ("on_step_begin", {}),
    "before the update": ("on_pre_optimizer_step", {}),
    "after the update": ("on_optimizer_step", {}),
    "after the step": ("on_step_end", {}),
    "in a log": ("on_log", {}),
    "in an evaluation": ("evaluation", {}),
    "in an evaluation by torch's loader": ("evaluation by torch's loader", {}),
    "in a save": ("save", {"save_steps": STEP, "save_in_background": False}),
    "in a background save": ("background save", {"save_steps": STEP}),
    "while waiting for data": ("wait", {}),
    "as workers start": ("start", {}),
    "persistent workers": ("forward", {"dataloader_persistent_workers": True}),
    "spawned workers": ("forward", {"dataloader_multiprocessing_context": "spawn"}),
    "both at once": ("on_step_end", {}),
    "in the rescue of another error": ("rescue", {}),
}
#: Killed from outside, whenever it may be.
_BUSY = {"max_steps": 60, "eval_steps": 3, "save_steps": 2, "save_total_limit": 2}
CASES |= {f"at random moment {number}": ("random", _BUSY) for number in range(13)}


class Begun(TrainerCallback):
    """Leaves a mark after the second step, and takes a little time for each."""

    def __init__(self, mark: Path, seconds: float) -> None:
        self.mark, self.seconds = mark, seconds

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep(self.seconds)
        if state.global_step == 2:
            self.mark.touch()


class Raises(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == STEP:
            raise ValueError("a mistake in a callback")


def tried(folder: Path, name: str) -> dict[str, Any]:
    where, extra = CASES[name]
    folder.mkdir(parents=True)
    kill = Killer(folder / "killed", most=2 if name == "both at once" else 1)
    waiting = folder / "waiting" if where == "wait" else None

    def work() -> str:
        if where in ("save", "background save", "rescue"):
            killed_saves(kill)
        if where == "start":
            killed_at_start(kill)
        asked = kill if where not in ("save", "background save", "rescue", "start", "wait", "random") else None
        trainer = build(folder, where, asked, waiting, **extra)
        if where == "rescue":
            trainer.add_callback(Raises())
        if where in ("random", "background save"):
            # So slowly that the workers are still needed when one is killed.
            trainer.add_callback(Begun(folder / "begun", 0.02 if where == "random" else 0.1))
        try:
            trainer.train()
        except Exception as error:
            return json.dumps([type(error).__name__, str(error)])
        return json.dumps(["", "it ended well"])

    began = time.monotonic()
    pid = _started(work, folder / "error")
    if waiting is not None:
        _wait_for(waiting)
        victim = next(child for child in psutil.Process(pid).children() if child.pid)
        victim.send_signal(signal.SIGKILL)
    if where == "random":
        _wait_for(folder / "begun")
        time.sleep(random.Random(name).uniform(0.0, 1.0))
        while not (victims := psutil.Process(pid).children()):
            time.sleep(0.001)
        random.choice(victims).send_signal(signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    seconds = time.monotonic() - began
    events = folder / "run" / "events.jsonl"
    kinds = [json.loads(line)["kind"] for line in events.read_text().splitlines()] if events.exists() else []
    saved = [path.name for path in list_checkpoints(folder / "run")]
    second = forked(lambda: finished(folder, where, extra), folder / "answer")
    error = json.loads((folder / "error").read_text()) if (folder / "error").exists() else None
    end = (folder / "answer").read_text() if second == 0 else None
    return {"code": code, "error": error, "saved": saved, "events": kinds, "end": end, "seconds": seconds}


def _started(work: Callable[[], str], answer: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        answer.write_text(work())
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(98)


def finished(folder: Path, where: str, extra: dict[str, Any]) -> str:
    trainer = build(folder, where, None, None, **extra)
    trainer.train()
    return fingerprint(trainer)


def _wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.01)


def results(root: Path, names: list[str]) -> dict[str, Any]:
    """What became of each run."""
    root.mkdir(parents=True, exist_ok=True)
    # Once here, so that the children find everything imported.
    finished(root / "warm-up", "forward", {"dataloader_num_workers": 0, "dataloader_prefetch_factor": None})
    answers: dict[str, Any] = {}
    straight: dict[str, str] = {}
    for name in names:
        where = CASES[name][0]
        # Others draw or read something else.
        different = where.endswith("save") or where in ("wait", "random", "evaluation by torch's loader")
        data = where if different else "other"
        if data not in straight:
            extra = CASES[name][1] if data == "random" else {}
            work = lambda data=data, extra=extra: finished(root / f"straight-{data}", data, extra)  # noqa: E731
            assert forked(work, root / data) == 0
            straight[data] = (root / data).read_text()
        answers[name] = {**tried(root / name.replace(" ", "-"), name), "straight": straight[data]}
    return answers
