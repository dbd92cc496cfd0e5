"""What a profile says, in plain words: sentences and a table of where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: Parts of operators' names, and what people call such work; the first that fits counts.
_KINDS = (
    ("data", ("dataloader", "pin_memory")),
    ("communication between processes", ("nccl", "gloo", "c10d", "all_reduce", "reduce_scatter", "all_gather")),
    ("optimizer", ("optimizer.", "_fused_", "_foreach_", "adam", "multi_tensor_apply")),
    ("attention", ("attention", "flash", "sdpa")),
    ("convolution", ("conv", "winograd", "cudnn")),
    ("matrix multiplication", ("mm", "linear", "gemm", "matmul", "cutlass", "dot")),
    ("normalization", ("norm",)),
    ("softmax and loss", ("softmax", "nll", "nllloss", "cross_entropy", "mse_loss")),
    ("embedding", ("embedding", "index")),
    ("copies between memories and formats", ("copy", "memcpy", "contiguous", "aten::cat", "clone", "stack")),
    ("views and shapes", ("transpose", "aten::t", "view", "reshape", "permute", "slice", "select", "as_strided")),
    ("dropout and random numbers", ("dropout", "bernoulli", "random")),
    ("memory", ("empty", "resize", "alloc", "zero_", "fill_", "memset")),
)
_OTHER = "element by element"
_ROWS, _FEWEST_PERCENT = 12, 5


@dataclass(frozen=True)
class Part:
    """An operator: its name, milliseconds in all steps, and calls."""

    name: str
    milliseconds: float
    calls: int

    @property
    def kind(self) -> str:
        """What people call it."""
        name = self.name.lower()
        return next((kind for kind, parts in _KINDS if any(part in name for part in parts)), _OTHER)


def parts_of(averages: Sequence[Any], *, on_device: bool) -> list[Part]:
    """The operators of a profile by the time that they took themselves, on the GPU where there is one."""
    attribute = "self_device_time_total" if on_device else "self_cpu_time_total"
    found = [Part(str(one.key), float(getattr(one, attribute)) / 1000, int(one.count)) for one in averages]
    return sorted((part for part in found if part.milliseconds > 0), key=lambda part: -part.milliseconds)


def sentences(parts: Sequence[Part], steps: int, seconds: float, *, on_device: bool) -> list[str]:
    """What a person should know first.

    >>> parts = [Part("aten::mm", 60.0, 10), Part("aten::add", 20.0, 4)]
    >>> for line in sentences(parts, 2, 0.1, on_device=False):
    ...     print(line)
    2 steps took 50.0 ms each, measured while the profiler looked on, which slows them down.
    Most of the work: matrix multiplication 75 %, element by element 25 %.
    20 % of the time was spent outside of torch's operators: in Python, in the data's own code, or waiting.
    """
    each = 1000 * seconds / max(steps, 1)
    lines = [
        f"{steps} step{'' if steps == 1 else 's'} took {each:.1f} ms{' each' if steps > 1 else ''}, measured while the "
        "profiler looked on, which slows them down."
    ]
    total = sum(part.milliseconds for part in parts)
    if not total:
        return lines
    kinds: dict[str, float] = {}
    for part in parts:
        kinds[part.kind] = kinds.get(part.kind, 0.0) + part.milliseconds
    ranked = sorted(kinds.items(), key=lambda item: -item[1])
    shares = [f"{kind} {time / total:.0%}".replace("%", " %") for kind, time in ranked if time >= total / 20]
    lines.append(f"Most of the work: {', '.join(shares)}.")
    idle = round(100 * max(0.0, 1 - total / 1000 / max(seconds, 1e-9)))
    if idle >= _FEWEST_PERCENT and on_device:
        lines.append(f"The GPU had nothing to do for {idle} % of the time: it waited for Python, or for data.")
    elif idle >= _FEWEST_PERCENT:
        lines.append(
            f"{idle} % of the time was spent outside of torch's operators: in Python, in the data's own code, or "
            "waiting."
        )
    return lines


def table(parts: Sequence[Part], steps: int) -> list[tuple[str, ...]]:
    """A heading and the longest: what it is, its operator, milliseconds a step, share, calls a step."""
    total = sum(part.milliseconds for part in parts) or 1.0
    rows: list[tuple[str, ...]] = [("what", "operator", "ms a step", "share", "calls a step")]
    for part in parts[:_ROWS]:
        share = f"{100 * part.milliseconds / total:.0f} %"
        name = part.name if len(part.name) <= 60 else f"{part.name[:57]}..."
        rows.append((part.kind, name, f"{part.milliseconds / steps:.2f}", share, f"{part.calls / steps:g}"))
    return rows


def plain_table(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns of words, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        words = [f"{word:<{width}}" for word, width in zip(row[:2], widths, strict=False)]
        words += [f"{word:>{width}}" for word, width in zip(row[2:], widths[2:], strict=True)]
        lines.append("  ".join(words))
    return "\n".join(lines)


def markdown(first: int, last: int, said: Sequence[str], rows: Sequence[tuple[str, ...]]) -> str:
    """``profile/summary.md``."""
    lines = [f"# Profile of steps {first} to {last}", "", *said, ""]
    cells = [[word.replace("|", "\\|").replace("<", "&lt;") for word in row] for row in rows]
    lines += [f"| {' | '.join(cells[0])} |", "|---|---|--:|--:|--:|", *(f"| {' | '.join(row)} |" for row in cells[1:])]
    return "\n".join([*lines, "", "`trace.json` shows every call: open it in Perfetto (ui.perfetto.dev).", ""])
