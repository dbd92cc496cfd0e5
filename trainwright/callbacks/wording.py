"""The words and numbers that a run shows: plain strings, no terminal involved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainwright.config.arguments import TrainingArguments
from trainwright.config.fields import ours
from trainwright.core.errors import Preempted
from trainwright.core.main_memory import machine_memory, process_memory
from trainwright.core.speed import Speed
from trainwright.core.state import TrainerState

#: Names that a line has no room for; ``metrics.jsonl`` has them all.
_HIDDEN_ENDINGS = ("_runtime", "_per_second", "_preparation_time")
_HIDDEN = {"total_flos", "epoch", "step", "slowest_rank"}
#: Times of several processes, of which the slowest is shown if it takes so many times the mean.
_STEP_SECONDS, _NOTABLE = "step_seconds_", 1.2
#: Losses by class or source (log_loss_per): few of them have room.
_GROUP, _MOST_GROUPS = "loss/", 4
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
    groups = sum(name.startswith(_GROUP) for name in logs)
    for name, value in logs.items():
        if groups > _MOST_GROUPS and name.startswith(_GROUP):
            continue
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
    # Names and texts are anybody's, and a terminal obeys some characters.
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in "  ".join(words))


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


def of_total(used: int, total: int | None) -> str:
    """Bytes, and how many there are.

    >>> of_total(3 * 2**30, 16 * 2**30), of_total(2**29, None)
    ('3.0 of 16.0 GiB', '0.5 GiB')
    """
    return f"{used / _GIB:.1f} of {total / _GIB:.1f} GiB" if total else f"{used / _GIB:.1f} GiB"


def closing_line(
    args: TrainingArguments,
    state: TrainerState,
    summary: Mapping[str, Any],
    first_step: int,
    took: float,
    reason: str | None = None,
) -> str:
    """How a run ended, and why, where that was not the end of its last epoch."""
    steps, total = state.global_step, state.max_steps
    if steps >= total:
        words = [f"trained {plural(steps - first_step, 'step')} in {duration(took)}"]
        if first_step:
            words[0] += f", up to step {steps}"
        elif args.max_steps > 0:
            words[0] += ", all of max_steps"
    else:
        words = [f"ended at step {steps} of {total} after {duration(took)}" + (f": {reason}" if reason else "")]
    if "train_loss" in summary:
        words.append(f"train_loss {number(summary['train_loss'])}")
    if state.best_metric is not None and args.metric_for_best_model is not None:
        words.append(f"best {args.metric_for_best_model} {number(state.best_metric)} at step {state.best_global_step}")
    if summary.get("train_samples_per_second"):
        words.append(speed(summary["train_samples_per_second"], "samples"))
    return "  ".join(words)


def failing_line(state: TrainerState, error: BaseException, took: float) -> str:
    """The last line of a training that raises instead of ending.

    >>> failing_line(TrainerState(global_step=5, max_steps=8), ValueError("no such column"), 2.0)
    'ended at step 5 of 8 after 2.0 s: ValueError: no such column'
    """
    if isinstance(error, (Preempted, KeyboardInterrupt)):
        return f"stopped at step {state.global_step} of {state.max_steps} after {duration(took)}"
    said = str(error).strip().splitlines()
    words = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
    return f"ended at step {state.global_step} of {state.max_steps} after {duration(took)}: {words}"


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


def pace_of(measured: Speed | None) -> str:
    """The speed since the log before, in samples where they can be counted and in steps otherwise.

    >>> pace_of(Speed(10, steps_per_second=2.0, samples_per_second=64.0)), pace_of(None)
    ('64 samples/s', '')
    """
    if measured is None or not measured.steps:
        return ""
    if measured.samples_per_second:
        return speed(measured.samples_per_second, "samples")
    return speed(measured.steps_per_second, "steps")


def reason_in(events: Any) -> str | None:
    """Why a training ended before its last step, if that is among its events."""
    recorded = getattr(events, "recorded", ())
    return next((event.get("reason") for event in reversed(recorded) if event.get("kind") == "stopped_early"), None)


def epochs_of(args: TrainingArguments, state: TrainerState, loader: object) -> float | None:
    """How many epochs a training has; None where the data has no length."""
    batches = length_of(loader)
    if not batches:
        return None
    epochs = state.max_steps * args.gradient_accumulation_steps / batches
    # Uneven last groups make the quotient a little more than the whole number meant.
    return round(min(epochs, state.num_train_epochs), 2)


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
    if (epochs := epochs_of(args, state, loader)) is not None:
        text += f", {plural(epochs, 'epoch')}"
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
    return f"memory {of_total(used, total)}"
