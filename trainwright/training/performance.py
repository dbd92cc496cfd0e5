"""Where the time of a training goes, from log to log: ``state.speed``, and ``performance.jsonl`` in the run directory.

The file is beside the log and not in it: a resumed run's log is the same as that of a run without interruption, and a
clock's numbers never are. It is only ever added to: what was done twice, because a run was killed, stands there twice.
"""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from trainwright.core.files import append_text
from trainwright.core.main_memory import machine_memory, process_memory
from trainwright.core.speed import Speed, Stretch
from trainwright.engines.torch.peak_flops import peak_flops
from trainwright.training.counting import flops_per_token
from trainwright.training.one_writer import may_write
from trainwright.training.run import TrainingRun
from trainwright.training.save_model import run_folder

logger = logging.getLogger("trainwright")

FILE = "performance.jsonl"
#: A line tells of at least this part of the time so far: of days, too, there are a few thousand lines.
SMALLEST_LINE = 1 / 1000
SECONDS_BETWEEN_WRITES = 1.0


def begin_steps(run: TrainingRun) -> None:
    """The first step comes next: what there was until now was preparation."""
    state = run.setup.state
    run.feed.take_waiting()
    run.spent.begin_steps((state.global_step, state.num_input_tokens_seen, state.total_flos))


def end_part(run: TrainingRun) -> None:
    """What comes next does not go on from here: a line of its own tells of all until now."""
    _take(run)
    _note(run)


def begin_part(run: TrainingRun) -> None:
    """Training goes on from another step than it had come to."""
    state = run.setup.state
    run.spent.counted = (state.global_step, state.num_input_tokens_seen, state.total_flos)


def measure(run: TrainingRun) -> None:
    """Set ``state.speed`` to what was measured since the log before, and keep it for the run directory."""
    spent = run.spent
    run.setup.state.speed = _speed_over(run, _take(run))
    if spent.stretch.length >= spent.told * SMALLEST_LINE:
        _note(run)
    # Whoever logs every step does not want to open a file in every step.
    if time.perf_counter() - spent.written_at > SECONDS_BETWEEN_WRITES:
        _write(run)


def _take(run: TrainingRun) -> Stretch:
    """All since this was last asked; the next line tells of it, too."""
    state, spent = run.setup.state, run.spent
    waited, passed = run.feed.take_waiting()
    state.data_wait = waited / max(passed, 1e-9)
    seconds = spent.take(waited)
    step, tokens, flops = spent.counted
    spent.counted = (state.global_step, state.num_input_tokens_seen, state.total_flos)
    # After a rewind there are fewer of all of them than before.
    steps = max(state.global_step - step, 0)
    operations = max(state.total_flos - flops, 0.0)
    per_token = flops_per_token(run.setup)
    counted = max(state.num_input_tokens_seen - tokens, 0) or (operations / per_token if per_token else 0.0)
    now = Stretch()
    now.add(steps, counted, operations, seconds)
    spent.stretch.add(steps, counted, operations, seconds)
    return now


def _speed_over(run: TrainingRun, part: Stretch) -> Speed:
    trained = max(part.seconds.get("train", 0.0), 1e-9)
    memory, total = _memory(run)
    args, plan = run.setup.args, run.plan
    peak = peak_flops(args.device, is_half=bool(args.bf16 or args.fp16)) if part.flops else None
    return Speed(
        steps=part.steps,
        seconds={name: round(value, 6) for name, value in part.seconds.items()},
        steps_per_second=part.steps / trained,
        samples_per_second=part.steps * plan.samples / max(plan.max_steps, 1) / trained,
        tokens_per_second=part.tokens / trained if part.tokens else None,
        flops_per_second=part.flops / trained if part.flops else None,
        mfu=None if peak is None else part.flops / trained / peak / run.setup.backend.world_size,
        data_wait=min(part.seconds.get("data", 0.0) / trained, 1.0),
        memory=memory,
        memory_total=total,
    )


def _memory(run: TrainingRun) -> tuple[int | None, int | None]:
    device = run.setup.args.device
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device), torch.cuda.get_device_properties(device).total_memory
    if device.type == "cpu":
        return process_memory() or None, machine_memory() or None
    return None, None


def _note(run: TrainingRun) -> None:
    """One line for all since the line before."""
    state, spent = run.setup.state, run.spent
    if not spent.stretch.length:
        return
    speed = _speed_over(run, spent.stretch)
    spent.told, spent.stretch = spent.told + spent.stretch.length, Stretch()
    known = {name: _short(value) for name, value in asdict(speed).items() if value is not None}
    where = {"step": state.global_step, "max_steps": state.max_steps}
    line = {**where, "time": round(time.time(), 3), "start": round(spent.start, 3), **known}
    spent.unwritten.append(json.dumps(line) + "\n")


def write_lines(run: TrainingRun) -> None:
    """The training is over: write what no line tells of yet, also of steps since the last log where it was stopped."""
    try:
        if run.spent.has_begun and run.setup.state.global_step > run.spent.counted[0]:
            _take(run)
        _note(run)
        _write(run)
    except Exception:
        # The training ends as it does; how long it took is no reason to end otherwise.
        logger.debug("performance.jsonl lacks its last line", exc_info=True)


def _write(run: TrainingRun) -> None:
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
