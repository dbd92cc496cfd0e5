"""Callbacks that need torch: emptying the allocator's cache, and profiling."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import torch

from trainwright.config.arguments import TrainingArguments
from trainwright.config.run_directory import run_directory
from trainwright.core.callback import TrainerCallback
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.engines.torch.profile_summary import markdown, parts_of, plain_table, sentences, table

logger = logging.getLogger("trainwright")


class EmptyCacheCallback(TrainerCallback):
    """Give cached device memory back every ``steps`` steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        if state.global_step % self.steps == 0:
            torch.accelerator.memory.empty_cache() if torch.accelerator.is_available() else None


class ProfileCallback(TrainerCallback):
    """``profile="steps 5-10"``: a torch.profiler trace of these steps, and on CUDA a memory snapshot.

    Files go to ``<output_dir>/profile``, those of other processes than the first to ``profile/rank-00001`` and so on;
    open ``trace.json`` in chrome://tracing or Perfetto. What it says is printed, and is in ``summary.md``.
    """

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self._profiler: Any = None
        self._began, self._done = 0.0, 0

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        if state.global_step + 1 != self.first:
            return
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
            torch.cuda.memory._record_memory_history(max_entries=100_000)
        self._profiler = torch.profiler.profile(
            activities=activities, record_shapes=True, profile_memory=True, acc_events=True
        )
        self._profiler.start()
        self._began, self._done = time.perf_counter(), 0

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self._done += self._profiler is not None
        if state.global_step == self.last:
            self._write(args)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        # The run was shorter than the window: what there is is still worth having.
        self._write(args)

    def _write(self, args: TrainingArguments) -> None:
        if self._profiler is None:
            return
        folder = run_directory(args) / "profile"
        if args.process_index > 0:
            folder /= f"rank-{args.process_index:05d}"
        if torch.cuda.is_available():
            # What was asked of it belongs to these steps.
            torch.cuda.synchronize()
        seconds = time.perf_counter() - self._began
        self._profiler.stop()
        folder.mkdir(parents=True, exist_ok=True)
        self._profiler.export_chrome_trace(str(folder / "trace.json"))
        averages = self._profiler.key_averages()
        whole = averages.table(sort_by="self_cpu_time_total", row_limit=30)
        (folder / "summary.txt").write_text(whole, encoding="utf-8")
        self._say(averages, seconds, folder, aloud=args.process_index == 0)
        if torch.cuda.is_available():
            # torch's own viewer format, written for people to open; trainwright never reads it back.
            torch.cuda.memory._dump_snapshot(str(folder / "memory_snapshot.pickle"))
            torch.cuda.memory._record_memory_history(enabled=None)
        logger.info("Profile of steps %d-%d written to %s", self.first, self.last, folder)
        self._profiler = None

    def _say(self, averages: Any, seconds: float, folder: Path, *, aloud: bool) -> None:
        parts = parts_of(averages, on_device=torch.cuda.is_available())
        steps = max(self._done, 1)
        said = sentences(parts, steps, seconds, on_device=torch.cuda.is_available())
        rows, last = table(parts, steps), self.first + steps - 1
        (folder / "summary.md").write_text(markdown(self.first, last, said, rows), encoding="utf-8")
        if aloud:
            heading = f"Profile of steps {self.first} to {last} ({folder / 'summary.md'})"
            print("", heading, *said, plain_table(rows), "", sep="\n", flush=True)
