"""Where the time of a training goes, from log to log: ``state.speed``, and ``performance.jsonl`` in the run directory.

The file is beside the log and not in it: a resumed run's log is the same as that of a run without interruption, and a
clock's numbers never are. It is only ever added to: what was done twice, because a run was killed, stands there twice.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from trainwright.core.files import append_text
from trainwright.core.main_memory import machine_memory, process_memory
from trainwright.core.speed import Speed
from trainwright.engines.torch.peak_flops import peak_flops
from trainwright.training.counting import flops_per_token
from trainwright.training.one_writer import may_write
from trainwright.training.run import TrainingRun
from trainwright.training.save_model import run_folder

FILE = "performance.jsonl"
SECONDS_BETWEEN_WRITES = 1.0


def begin_steps(run: TrainingRun) -> None:
    """The first step comes next: what there was until now was preparation."""
    state = run.setup.state
    run.feed.take_waiting()
    run.spent.begin_steps((state.global_step, state.num_input_tokens_seen, state.total_flos))


def measure(run: TrainingRun) -> None:
    """Set ``state.speed`` to what was measured since the log before, and keep it in the run directory."""
    state, spent = run.setup.state, run.spent
    waited, passed = run.feed.take_waiting()
    state.data_wait = waited / max(passed, 1e-9)
    seconds = spent.take(waited)
    step, tokens, flops = spent.counted
    # What is counted only when a run goes on from a checkpoint was not trained here.
    steps = state.global_step - step
    spent.counted = (state.global_step, state.num_input_tokens_seen, state.total_flos)
    trained = max(seconds.get("train", 0.0), 1e-9)
    operations = max(state.total_flos - flops, 0.0)
    per_token = flops_per_token(run.setup)
    counted = state.num_input_tokens_seen - tokens or (operations / per_token if per_token else 0)
    memory, total = _memory(run)
    args = run.setup.args
    peak = peak_flops(args.device, is_half=bool(args.bf16 or args.fp16)) if operations else None
    state.speed = Speed(
        steps=steps,
        seconds=seconds,
        steps_per_second=steps / trained,
        samples_per_second=steps * run.plan.samples / max(run.plan.max_steps, 1) / trained,
        tokens_per_second=counted / trained if counted else None,
        flops_per_second=operations / trained if operations else None,
        mfu=None if peak is None else operations / trained / peak / run.setup.backend.world_size,
        data_wait=state.data_wait,
        memory=memory,
        memory_total=total,
    )
    _write(run, state.speed)


def _memory(run: TrainingRun) -> tuple[int | None, int | None]:
    device = run.setup.args.device
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device), torch.cuda.get_device_properties(device).total_memory
    if device.type == "cpu":
        return process_memory() or None, machine_memory() or None
    return None, None


def _write(run: TrainingRun, speed: Speed) -> None:
    known = {name: _short(value) for name, value in asdict(speed).items() if value is not None}
    state, spent = run.setup.state, run.spent
    line = {"step": state.global_step, "time": round(time.time(), 3), "start": round(spent.start, 3), **known}
    spent.unwritten.append(json.dumps(line) + "\n")
    # Whoever logs every step does not want to open a file in every step.
    if time.perf_counter() - spent.written_at > SECONDS_BETWEEN_WRITES:
        write_lines(run)


def write_lines(run: TrainingRun) -> None:
    """Write the lines that wait."""
    setup, spent = run.setup, run.spent
    lines, spent.unwritten, spent.written_at = spent.unwritten, [], time.perf_counter()
    if not lines or not setup.args.should_save or run.is_over or not may_write(run):
        return
    folder = run_folder(setup)
    # Without its folder nothing is written; of a full disk is said what matters more.
    with suppress(OSError):
        if folder.is_dir():
            append_text(folder / FILE, "".join(lines))


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
