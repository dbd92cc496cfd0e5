"""Cost of a training step over a bare PyTorch loop, for trainwright and its peers.

    python bench/overhead.py [--cycles 150] [--only bare trainwright ...]

All contenders are threads of one process and hand over every dozen steps, so that they meet the same weather; the
ratio to the bare loop is taken inside each cycle, on thread CPU time, and the median over the cycles is printed. The
number of Python and C calls per step, counted with sys.setprofile, is exact and does not depend on the machine.
``in_memory`` is trainwright on a TensorDataset, over a bare loop with a DataLoader on the same.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import logging
import os
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

STEPS_PER_TURN = 12
BATCH = 8
RATE = 5e-5


class MLP(nn.Module):
    """Small enough that what surrounds it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 4)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.second(torch.relu(self.first(x)))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Rows(Dataset[dict[str, Tensor]]):
    def __init__(self, steps: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(steps * BATCH, 16, generator=generator)
        self.y = torch.randint(0, 4, (steps * BATCH,), generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.x[index], "labels": self.y[index]}


Tick = Callable[[], None]


def bare(
    rows: Rows, steps: int, defaults: bool, tick: Tick, dataset: Any = None, network: nn.Module | None = None
) -> None:
    """The loop a person writes; with ``defaults`` it clips, schedules, shows a bar and logs, as the trainers do."""
    from tqdm import tqdm

    model = network or MLP()
    loader: Any = DataLoader(dataset or rows, batch_size=BATCH, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, (steps - step) / steps))
    bar = tqdm(total=steps, file=io.StringIO(), disable=not defaults)
    running = norm = torch.zeros(())
    for step, batch in enumerate(loader, 1):
        loss = (model(**batch) if dataset is None else model(batch))["loss"]
        loss.backward()
        if defaults:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            running += loss.detach()
        optimizer.step()
        if defaults:
            schedule.step()
        optimizer.zero_grad()
        if defaults:
            bar.update()
            if step % 500 == 0:
                bar.write(str({"loss": running.item() / 500, "grad_norm": norm.item()}), file=io.StringIO())
                running.zero_()
        tick()


def _hf_like(
    library: Any,
    rows: Rows,
    steps: int,
    defaults: bool,
    tick: Tick,
    dataset: Any = None,
    network: nn.Module | None = None,
) -> None:
    class Ticker(library.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            tick()

    off = {"max_grad_norm": 0.0, "lr_scheduler_type": "constant", "logging_strategy": "no", "disable_tqdm": True}
    with tempfile.TemporaryDirectory() as folder:
        args = library.TrainingArguments(
            folder,
            per_device_train_batch_size=BATCH,
            num_train_epochs=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            **({} if defaults else off),
        )
        library.Trainer(network or MLP(), args, train_dataset=dataset or rows, callbacks=[Ticker()]).train()


def trainwright(rows: Rows, steps: int, defaults: bool, tick: Tick) -> None:
    import trainwright as library

    _hf_like(library, rows, steps, defaults, tick)


def accmt_door(rows: Rows, steps: int, defaults: bool, tick: Tick) -> None:
    """An ACCMT script through ``trainwright.compat.accmt``."""
    from trainwright.compat import accmt

    class Module(accmt.AcceleratorModule):
        def __init__(self) -> None:
            self.model = MLP()

        def training_step(self, batch: Any) -> Tensor:
            return self.model(**batch)["loss"]

    class Ticker(accmt.Callback):
        def on_after_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            tick()

    hps: dict[str, Any] = {"epochs": 1, "batch_size": BATCH}
    hps["optim"] = {"type": "AdamW", "lr": RATE, "weight_decay": 0.0, "fused": True}
    if defaults:
        hps["scheduler"] = {"type": "LinearWithWarmup"}
    with tempfile.TemporaryDirectory() as folder:
        accmt.Trainer(
            hps,
            f"{folder}/model",
            model_saving=None,
            checkpoint_every=None,
            log_every=500 if defaults else 10**9,
            clip_grad=1.0 if defaults else None,
            verbose=False,
            callbacks=[Ticker()],
        ).fit(Module(), rows)


def hf_trainer(rows: Rows, steps: int, defaults: bool, tick: Tick) -> None:
    import transformers as library

    _hf_like(library, rows, steps, defaults, tick)


def accelerate(rows: Rows, steps: int, defaults: bool, tick: Tick) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = MLP()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, (steps - step) / steps))
    loader = DataLoader(rows, batch_size=BATCH, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for batch in loader:
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        if defaults:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if defaults:
            schedule.step()
        optimizer.zero_grad()
        tick()


def fabric(rows: Rows, steps: int, defaults: bool, tick: Tick) -> None:
    from lightning.fabric import Fabric

    engine = Fabric(accelerator="cpu", devices=1)
    model = MLP()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, (steps - step) / steps))
    wrapped, wrapped_optimizer = engine.setup(model, optimizer)
    loader = engine.setup_dataloaders(DataLoader(rows, batch_size=BATCH, shuffle=True))
    for batch in loader:
        loss = wrapped(**batch)["loss"]
        engine.backward(loss)
        if defaults:
            engine.clip_gradients(wrapped, wrapped_optimizer, max_norm=1.0)
        wrapped_optimizer.step()
        if defaults:
            schedule.step()
        wrapped_optimizer.zero_grad()
        tick()


def lightning(rows: Rows, steps: int, defaults: bool, tick: Tick) -> None:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = MLP()

        def training_step(self, batch: Any, index: int) -> Tensor:
            loss = self.net(**batch)["loss"]
            if defaults:
                self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=RATE, fused=True, weight_decay=0.0)
            if not defaults:
                return optimizer
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, (steps - step) / steps))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            tick()

    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=defaults,
        enable_model_summary=False,
        gradient_clip_val=None,
    )
    trainer.fit(Module(), DataLoader(rows, batch_size=BATCH, shuffle=True))


class Classifier(MLP):
    """The same for batches of (inputs, labels); the loss is the loop's business."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.second(torch.relu(self.first(x)))


def bare_in_memory(rows: Rows, steps: int, defaults: bool, tick: Tick) -> None:
    """``bare`` over a TensorDataset."""

    class Step(Classifier):
        def forward(self, batch: list[Tensor]) -> dict[str, Tensor]:  # type: ignore[override]
            return {"loss": F.cross_entropy(super().forward(batch[0]), batch[1])}

    bare(rows, steps, defaults, tick, TensorDataset(rows.x, rows.y), Step())


def in_memory(rows: Rows, steps: int, defaults: bool, tick: Tick) -> None:
    import trainwright as library

    _hf_like(library, rows, steps, defaults, tick, TensorDataset(rows.x, rows.y), Classifier())


#: Whose time another contender's is divided by; that of "bare" where nothing is said.
BASES = {"in_memory": "bare_in_memory", "bare_in_memory": "bare_in_memory"}

CONTENDERS: dict[str, Callable[[Rows, int, bool, Tick], None]] = {
    "bare": bare,
    "trainwright": trainwright,
    "bare_in_memory": bare_in_memory,
    "in_memory": in_memory,
    "accmt_door": accmt_door,
    "fabric": fabric,
    "accelerate": accelerate,
    "lightning": lightning,
    "hf_trainer": hf_trainer,
}


class Baton:
    """Lets one thread run at a time and writes down the CPU time of each turn."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.turn = 0
        self.changed = threading.Condition()
        self.times: dict[str, list[float]] = {name: [] for name in names}
        self.steps = dict.fromkeys(names, 0)
        self.started: dict[str, float] = {}
        self.finished: set[str] = set()

    def wait(self, name: str) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.names[self.turn] == name)
        self.started[name] = time.thread_time()

    def tick(self, name: str) -> None:
        self.steps[name] += 1
        if self.steps[name] % STEPS_PER_TURN == 0:
            self.times[name].append(time.thread_time() - self.started[name])
            self.pass_on()
            self.wait(name)

    def pass_on(self) -> None:
        with self.changed:
            for _ in self.names:
                self.turn = (self.turn + 1) % len(self.names)
                if self.names[self.turn] not in self.finished:
                    break
            self.changed.notify_all()

    def finish(self, name: str) -> None:
        self.finished.add(name)
        self.pass_on()


def measure(names: list[str], cycles: int, defaults: bool) -> dict[str, float]:
    """Median over the cycles of each contender's time for a turn, divided by the bare loop's in the same cycle."""
    warm_up = 10
    steps = STEPS_PER_TURN * (cycles + warm_up)
    rows, baton = Rows(steps), Baton(names)
    errors: list[BaseException] = []

    def run(name: str) -> None:
        baton.wait(name)
        try:
            CONTENDERS[name](rows, steps, defaults, lambda: baton.tick(name))
        except BaseException as error:
            errors.append(error)
        finally:
            baton.finish(name)

    threads = [threading.Thread(target=run, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    count = min(len(times) for times in baton.times.values())
    ratios = {
        name: statistics.median(
            baton.times[name][i] / baton.times[BASES.get(name, "bare")][i] for i in range(warm_up, count)
        )
        for name in names
    }
    microseconds = statistics.median(baton.times["bare"][warm_up:]) / STEPS_PER_TURN * 1e6
    print(f"bare loop: {microseconds:.0f} us a step", file=sys.__stdout__)
    return ratios


def calls_per_step(name: str, defaults: bool, steps: int = 120) -> float:
    """Python and C calls between two ticks, exactly, averaged over the second half of a short run."""
    seen = itertools.count()
    marks: list[int] = []

    def count(frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            next(seen)

    def tick() -> None:
        marks.append(next(seen))

    sys.setprofile(count)
    try:
        CONTENDERS[name](Rows(steps), steps, defaults, tick)
    finally:
        sys.setprofile(None)
    half = len(marks) // 2
    return (marks[-1] - marks[half]) / (len(marks) - 1 - half)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=150)
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS))
    options = parser.parse_args()
    bases = [BASES[name] for name in options.only if name in BASES]
    names = list(dict.fromkeys(["bare", *bases, *options.only]))
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    results: dict[bool, tuple[dict[str, float], dict[str, float]]] = {}
    for defaults in (False, True):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            calls = {name: calls_per_step(name, defaults) for name in names}
            results[defaults] = measure(names, options.cycles, defaults), calls
    print(f"{'':16}{'off':>8}{'calls':>8}{'default':>10}{'calls':>8}")
    for name in names:
        off, on = results[False], results[True]
        print(f"{name:16}{off[0][name]:8.2f}{off[1][name]:8.0f}{on[0][name]:10.2f}{on[1][name]:8.0f}")


if __name__ == "__main__":
    main()
