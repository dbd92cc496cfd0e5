"""Which logged names are numbers that one wants to see, and which keep the books."""

from __future__ import annotations

#: Endings of numbers about the clock, which performance.jsonl has better.
_CLOCK = ("_runtime", "_per_second", "_preparation_time")
_BOOKS = {"step", "time", "epoch", "total_flos", "num_input_tokens_seen", "slowest_rank"}
_MEMORY = ("_mem_cpu_", "_mem_gpu_", "before_init_mem", "init_mem")


def is_bookkeeping(name: str) -> bool:
    """Return True for what is logged beside the numbers that people look at.

    >>> is_bookkeeping("eval_runtime"), is_bookkeeping("eval_accuracy")
    (True, False)
    """
    return (
        name in _BOOKS
        or name.endswith(_CLOCK)
        or name.startswith("step_seconds_")
        or any(part in name for part in _MEMORY)
    )
