"""The words and numbers that a run shows: plain strings, no terminal involved."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from trainwright.config.arguments import TrainingArguments
from trainwright.config.fields import ours
from trainwright.core.main_memory import machine_memory, process_memory
from trainwright.core.state import TrainerState

#: Names that a line has no room for; ``metrics.jsonl`` has them all.
_HIDDEN_ENDINGS = ("_runtime", "_per_second", "_preparation_time")
_HIDDEN = {"total_flos", "epoch", "step", "slowest_rank"}
#: Times of several processes, of which the slowest is shown if it takes so many times the mean.
_STEP_SECONDS, _NOTABLE = "step_seconds_", 1.2
#: Shorter names, and three digits, for what is only glanced at: a line should fit 80 columns.
_SHORT = {"learning_rate": "lr", "grad_norm": "grad"}
_GIB = 1024**3


def number(value: object, max_str_len: int = 100) -> str:
    """A value in few characters; four digits tell enough, and NaN stays visible as ``nan``.

    >>> number(0.123456), number(5e-05), number(float("nan")), number(7)
    ('0.1235', '5e-05', 'nan', '7')
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text if len(text) <= max_str_len else f"({len(text)} characters, more than max_str_len={max_str_len})"


def amount(count: int) -> str:
    """A count as people say it.

    >>> amount(980), amount(25450), amount(1_234_567), amount(7_000_000_000)
    ('980', '25.4K', '1.2M', '7.0B')
    """
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= size:
            return f"{count / size:.1f}{letter}"
    return str(count)


def clock(seconds: float) -> str:
    """Seconds as ``m:ss`` or ``h:mm:ss``.

    >>> clock(7.9), clock(75), clock(3700)
    ('0:07', '1:15', '1:01:40')
    """
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def duration(seconds: float) -> str:
    """A time span in words.

    >>> duration(0.034), duration(12.34), duration(75)
    ('0.03 s', '12.3 s', '1:15 min')
    """
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    return f"{clock(seconds)} {'min' if seconds < 3600 else 'h'}"


def speed(per_second: float, unit: str) -> str:
    """A rate; below one a second it still shows digits.

    >>> speed(1234.56, "samples"), speed(0.1234, "steps")
    ('1235 samples/s', '0.123 steps/s')
    """
    return f"{per_second:.0f} {unit}/s" if per_second >= 100 else f"{per_second:.3g} {unit}/s"


def log_line(logs: Mapping[str, Any], state: TrainerState, *, pace: str = "", max_str_len: int = 100) -> str:
    """One log as one line: ``step 50/200  epoch 0.5  loss 0.31  lr 5e-05  1234 samples/s``."""
    words = []
    if state.max_steps > 0:
        words.append(f"step {state.global_step}/{state.max_steps}")
        if "epoch" in logs:
            words.append(f"epoch {round(float(logs['epoch']), 2):g}")
    for name, value in logs.items():
        if name not in _HIDDEN and not name.endswith(_HIDDEN_ENDINGS) and not name.startswith(_STEP_SECONDS):
            short = f"{value:.3g}" if name in _SHORT and isinstance(value, float) else number(value, max_str_len)
            words.append(f"{_SHORT.get(name, name)} {short}")
    took = sum(value for name, value in logs.items() if name.endswith("_runtime") and not name.startswith("train_"))
    if took:
        words.append(f"in {duration(took)}")
    if slow := _straggler(logs):
        words.append(slow)
    if pace:
        words.append(pace)
    return "  ".join(words)


def _straggler(logs: Mapping[str, Any]) -> str:
    """The slowest process, where it is worth a look."""
    longest, mean = logs.get(f"{_STEP_SECONDS}max", 0.0), logs.get(f"{_STEP_SECONDS}mean", 0.0)
    if longest <= _NOTABLE * mean:
        return ""
    return f"rank {logs['slowest_rank']} takes {longest / mean:.1f}x the mean"


def header_line(args: TrainingArguments, state: TrainerState, model: Any = None, loader: object = None) -> str:
    """What is about to be trained: device, parameters, steps and epochs, batch, memory."""
    parts = [_device(args), _parameters(model), _length(args, state, loader), _batch(args), _memory(args)]
    return " | ".join(part for part in parts if part)


def closing_line(
    args: TrainingArguments, state: TrainerState, summary: Mapping[str, Any], first_step: int, took: float
) -> str:
    """How a run ended."""
    steps, total = state.global_step, state.max_steps
    if steps >= total:
        words = [f"trained {plural(steps - first_step, 'step')} in {duration(took)}"]
    else:
        words = [f"stopped at step {steps} of {total} after {duration(took)}"]
    if "train_loss" in summary:
        words.append(f"train_loss {number(summary['train_loss'])}")
    if state.best_metric is not None and args.metric_for_best_model is not None:
        words.append(f"best {args.metric_for_best_model} {number(state.best_metric)} at step {state.best_global_step}")
    if summary.get("train_samples_per_second"):
        words.append(speed(summary["train_samples_per_second"], "samples"))
    return "  ".join(words)


def plural(count: float, noun: str) -> str:
    """``1 step``, ``2 steps``, ``0.5 epochs``."""
    return f"{count:g} {noun}" if count == 1 else f"{count:g} {noun}s"


def deciding_metric(logs: Mapping[str, Any], wanted: str | None) -> tuple[str, Any] | None:
    """The evaluation metric to show beside the bar: the one that decides, accuracy, or the first that is no loss."""
    metrics = {
        name.removeprefix("eval_"): value
        for name, value in logs.items()
        if name.startswith("eval_") and not name.endswith(_HIDDEN_ENDINGS) and isinstance(value, (int, float))
    }
    preferred = [str(wanted).removeprefix("eval_"), "accuracy"] + [name for name in metrics if "loss" not in name]
    for name in preferred:
        # The training loss stands beside it: a bare "loss" would name two things.
        if name in metrics and name != "loss":
            return name, metrics[name]
    return ("eval_loss", metrics["loss"]) if "loss" in metrics else None


class Pace:
    """Training speed from one log to the next; evaluations in between do not count."""

    def __init__(self, state: TrainerState, examples: int | None) -> None:
        self._examples = examples
        self._mark(state)

    def _mark(self, state: TrainerState) -> None:
        self._time, self._step, self._epoch = time.perf_counter(), state.global_step, state.epoch or 0.0

    def skip(self, seconds: float) -> None:
        """Leave out time that was not spent on training steps."""
        self._time += seconds

    def read(self, state: TrainerState) -> str:
        """The speed since the last reading, in samples where the data has a length and in steps otherwise."""
        taken = time.perf_counter() - self._time
        steps, epochs = state.global_step - self._step, (state.epoch or 0.0) - self._epoch
        self._mark(state)
        if taken <= 0 or steps <= 0:
            return ""
        if self._examples is None:
            return speed(steps / taken, "steps")
        # Epochs times examples counts a short last batch for what it is.
        return speed(epochs * self._examples / taken, "samples")


def examples_of(loader: Any) -> int | None:
    """Rows behind a loader, if it can tell."""
    try:
        return len(loader.dataset)
    except (AttributeError, TypeError, NotImplementedError):
        return None


def length_of(loader: Any) -> int | None:
    """Batches in a loader, if it can tell."""
    try:
        return len(loader)
    except (AttributeError, TypeError, NotImplementedError):
        return None


# ---- parts of the header


def _device(args: TrainingArguments) -> str:
    device = args.device
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        import torch

        return f"CPU, {plural(torch.get_num_threads(), 'thread')}"
    return str(device.type).upper()


def _parameters(model: Any) -> str:
    if not hasattr(model, "parameters"):
        return ""
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    total, trainable = sum(size for size, _ in sizes), sum(size for size, learns in sizes if learns)
    frozen = f" ({amount(trainable)} trainable)" if trainable < total else ""
    return f"{amount(total)} parameters{frozen}"


def _length(args: TrainingArguments, state: TrainerState, loader: object) -> str:
    text = plural(state.max_steps, "step")
    batches = length_of(loader)
    if batches:
        epochs = state.max_steps * args.gradient_accumulation_steps / batches
        # Uneven last groups make the quotient a little more than the whole number meant.
        text += f", {plural(round(min(epochs, state.num_train_epochs), 2), 'epoch')}"
    return f"{text}, from step {state.global_step}" if state.global_step else text


def _batch(args: TrainingArguments) -> str:
    if ours(args).max_tokens_per_batch:
        return f"batches of {args.max_tokens_per_batch} tokens"
    size, pieces = args.train_batch_size * args.data_processes, args.gradient_accumulation_steps
    return f"batch {size * pieces} ({size} x {pieces})" if pieces > 1 else f"batch {size}"


def _memory(args: TrainingArguments) -> str:
    if args.device.type == "cuda":
        import torch

        free, total = torch.cuda.mem_get_info(args.device)
        used = total - free
    else:
        used, total = process_memory(), machine_memory()
    if not total:
        return ""
    return f"memory {used / _GIB:.1f} of {total / _GIB:.1f} GiB"
