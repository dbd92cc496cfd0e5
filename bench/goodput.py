"""How much of a run's work counts when it is killed again and again, and how soon it is at work again.

    python bench/goodput.py [--kills 150] [--processes 1] [--interval 400] [--save-every 100] [--seed 0] [--json]
    python bench/goodput.py --kills 50 --processes 2

A supervisor starts a script, waits until it has taken a random number of steps (``--interval`` on average), and sends
SIGKILL: to the training process or one of the ranks, to a worker of its DataLoader, or to everything at once. The
script is started again, by the supervisor or by ``trainwright launch --max-restarts``, and goes on with
``resume="auto"``; the last life is left alone. Then its weights are compared with those of a run that nobody disturbed.

"Useful" are the steps of the finished run, "computed" those that were taken in all lives. What training waits for a
save is the time between the end of a step and the beginning of the next one, less what it is without a save.

With ``--warm`` lives are forked from a process that has imported torch, in the place of new processes: for tests.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
STEPS, FINAL = "steps.txt", "final"
#: A life that takes no step in this time is a failure of ours.
PATIENCE = 120.0


# ---- the script that is killed


def train(folder: Path, steps: int, save_every: int) -> None:
    """A small network with dropout, and one worker for its data."""
    import torch
    from torch import nn

    from trainwright import Trainer, TrainerCallback, TrainingArguments

    class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            # An epoch does not begin where a checkpoint is saved: a new loader takes its time too.
            return 20_008

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            generator = torch.Generator().manual_seed(index)
            return {"x": torch.randn(64, generator=generator), "labels": torch.tensor(index % 4)}

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 4))

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": nn.functional.cross_entropy(self.layers(x), labels)}

    class Counts(TrainerCallback):
        """One line for each step: rank, process, step, time, and how long the loop stood still before it."""

        def __init__(self) -> None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            self.file = os.open(folder / STEPS, flags, 0o644)
            self.ended, self.pause = 0.0, 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.pause = time.perf_counter() - self.ended if self.ended else 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            rank = os.environ.get("RANK", "0")
            words = (rank, os.getpid(), state.global_step, f"{time.time():.6f}", f"{self.pause:.6f}")
            os.write(self.file, (" ".join(map(str, words)) + "\n").encode())
            self.ended = time.perf_counter()

    torch.set_num_threads(1)
    args = TrainingArguments(
        str(folder / "run"),
        max_steps=steps,
        per_device_train_batch_size=8,
        save_steps=save_every,
        save_total_limit=2,
        logging_steps=10,
        dataloader_num_workers=1,
        learning_rate=1e-3,
        resume="auto",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        log_level="error",
    )
    trainer = Trainer(Net(), args, train_dataset=Rows(), callbacks=[Counts()])
    trainer.train()
    trainer.save_model(str(folder / FINAL))


# ---- the supervisor


class Step(NamedTuple):
    """A line of the script's."""

    rank: int
    process: int
    step: int
    at: float
    pause: float


@dataclass
class Life:
    """The script as it was started: its first process, and how to wait for it."""

    process: int
    poll: Callable[[], int | None]


@dataclass
class Supervisor:
    """Starts lives, ends them, and starts them again."""

    folder: Path
    start: Callable[[], Life]
    is_by_ranks: bool
    chance: random.Random
    lives: int = 0
    kills: dict[str, int] = field(default_factory=dict)
    recoveries: list[float] = field(default_factory=list)
    _next: list[str] = field(default_factory=list)

    def steps(self) -> list[Step]:
        path = self.folder / STEPS
        words = (line.split() for line in path.read_text().splitlines()) if path.is_file() else ()
        return [Step(int(w[0]), int(w[1]), int(w[2]), float(w[3]), float(w[4])) for w in words if len(w) == 5]

    def run(self, kills: int, interval: int) -> None:
        """Up to the end, through as many deaths."""
        life = self._begin()
        while (code := life.poll()) != 0:
            if code is not None:
                life = self._begin()
            if sum(self.kills.values()) < kills:
                self._wait_for(life, self.chance.randint(1, 2 * interval))
                if life.poll() is None:
                    self._kill(life)
                    life = self._recovered(life)
            else:
                time.sleep(0.01)

    def _begin(self) -> Life:
        self.lives += 1
        return self.start()

    def _wait_for(self, life: Life, count: int) -> None:
        """Until ``count`` more steps are taken, and a moment more."""
        size = _size(self.folder / STEPS)
        line = 40
        limit = time.time() + PATIENCE
        while life.poll() is None and _size(self.folder / STEPS) - size < count * line * (1 + self.is_by_ranks):
            if time.time() > limit:
                break
            time.sleep(0.002)
        time.sleep(self.chance.random() * 0.01)

    def _kill(self, life: Life) -> None:
        everything = [life.process, *descendants(life.process)]
        ranks = sorted({step.process for step in self.steps()[-4:]} & set(everything))
        workers = [process for rank in ranks for process in children(rank)]
        victims = {"rank" if self.is_by_ranks else "process": ranks, "worker": workers, "group": everything}
        if not self._next:
            # Each kind as often as the others, in an order of chance.
            self._next = self.chance.sample(list(victims), len(victims))
        kind = self._next.pop() if victims[self._next[-1]] else "group"
        for process in victims[kind] if kind == "group" else [self.chance.choice(victims[kind])]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.kills[kind] = self.kills.get(kind, 0) + 1

    def _recovered(self, life: Life) -> Life:
        """Wait until somebody takes a step who was not there before."""
        died, known = time.time(), {step.process for step in self.steps()}
        while True:
            if (code := life.poll()) == 0:
                return life
            if code is not None:
                life = self._begin()
            first = next((step for step in self.steps()[-50:] if step.process not in known), None)
            if first is not None:
                self.recoveries.append(first.at - died)
                return life
            if time.time() - died > PATIENCE:
                raise RuntimeError(f"No step in {PATIENCE:.0f} s after a kill.")
            time.sleep(0.005)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def children(process: int) -> list[int]:
    try:
        listed = [Path(task, "children").read_text() for task in Path(f"/proc/{process}/task").iterdir()]
    except OSError:
        return []
    return [int(word) for text in listed for word in text.split()]


def descendants(process: int) -> list[int]:
    return [one for child in children(process) for one in (child, *descendants(child))]


def started(command: list[str]) -> Life:
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    return Life(child.pid, child.poll)


def forked(work: Callable[[], None]) -> Life:
    """The same in a child of this process, which has imported everything already."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    codes: list[int] = []

    def poll() -> int | None:
        if not codes:
            done, status = os.waitpid(child, os.WNOHANG)
            codes.extend([os.waitstatus_to_exitcode(status)] if done else [])
        return codes[0] if codes else None

    return Life(child, poll)


def starter(folder: Path, given: argparse.Namespace, steps: int) -> Callable[[], Life]:
    if given.warm:
        import torch

        from trainwright import Trainer  # noqa: F401

        # The first one imports torch.compile's machinery.
        torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
        return lambda: forked(lambda: train(folder, steps, given.save_every))
    script = [__file__, "--train", str(folder), "--steps", str(steps), "--save-every", str(given.save_every)]
    if given.processes == 1:
        return lambda: started([sys.executable, *script])
    launch = ["-m", "trainwright", "launch", "--nproc", str(given.processes), "--cpu", "--max-restarts", "1000"]
    return lambda: started([sys.executable, *launch, *script])


def weights(folder: Path) -> str:
    return hashlib.sha256((folder / FINAL / "model.safetensors").read_bytes()).hexdigest()


def measured(root: Path, given: argparse.Namespace) -> dict[str, Any]:
    # More than so many lives will take, so that none of them comes to the end.
    steps = given.kills * given.interval * 5 // 4 + 2 * given.interval
    straight, killed = root / "straight", root / "killed"
    for folder in (straight, killed):
        folder.mkdir(parents=True)
    alone = Supervisor(straight, starter(straight, given, steps), given.processes > 1, random.Random(0))
    alone.run(0, given.interval)
    supervisor = Supervisor(killed, starter(killed, given, steps), given.processes > 1, random.Random(given.seed))
    began = time.time()
    supervisor.run(given.kills, given.interval)
    wall = time.time() - began
    first = [step for step in supervisor.steps() if step.rank == 0]
    saves = [step.pause for step in first if (step.step - 1) % given.save_every == 0 and step.pause]
    usual = statistics.median(step.pause for step in first)
    stalls = sum(max(0.0, pause - usual) for pause in saves)
    training = sum(
        later.at - earlier.at for earlier, later in itertools.pairwise(first) if earlier.process == later.process
    )
    return {
        "kills": supervisor.kills,
        "lives": supervisor.lives,
        "useful": steps,
        "computed": len(first),
        "share_of_useful_steps": steps / len(first),
        "saves": len(saves),
        "share_of_saves_in_training": stalls / training,
        "share_of_saves_in_all": stalls / wall,
        "seconds_to_next_step": {
            "median": statistics.median(supervisor.recoveries),
            "worst": max(supervisor.recoveries),
        },
        "seconds": wall,
        "ms_a_step": 1000 * training / len(first),
        "same_bits": weights(killed) == weights(straight),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=150)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--interval", type=int, default=400)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train is not None:
        train(given.train, given.steps, given.save_every)
        return
    root = Path(tempfile.mkdtemp(prefix="goodput-"))
    try:
        found = measured(root, given)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if given.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:30} {value}")


if __name__ == "__main__":
    main()
