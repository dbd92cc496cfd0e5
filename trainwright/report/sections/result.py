"""What came out: the numbers that one looks for first, and what stands next to it."""

from __future__ import annotations

import math

import numpy as np

from trainwright.report.blocks import Block, Cards, Section, Table, Text
from trainwright.report.facts import is_bookkeeping
from trainwright.report.lines import Entry, column, number
from trainwright.report.stored_run import StoredRun, last_logged, main_metric
from trainwright.report.time_spent import goodput
from trainwright.report.words import duration, rate_of, shortened, size_of, value_of


def result(run: StoredRun) -> Section:
    """The best and the last numbers, how long it took and how fast it went."""
    cards = [*_metric_cards(run), *_length_cards(run), *_speed_cards(run)]
    blocks: list[Block] = [Cards(cards)] if cards else [Text("Nothing was logged.")]
    if failure := run.failure:
        blocks.insert(0, Text(shortened(str(failure.get("message", "It failed.")), 2000)))
    if (step := _first_without_a_loss(run)) is not None:
        blocks.append(Text(f"The loss is not a number from step {step:,} on, or in between: NaN or infinity."))
    if rows := _last_evaluation(run):
        blocks.append(Table(("metric", "last", "best", "at step"), rows))
    return Section("Result", blocks)


def _first_without_a_loss(run: StoredRun) -> int | None:
    for name in ("loss", "eval_loss"):
        for line in run.metrics:
            if name in line and not math.isfinite(number(line[name]) or 0.0):
                step = line.get("step")
                return step if isinstance(step, int) else 0
    return None


def _metric_cards(run: StoredRun) -> list[tuple[str, str, str]]:
    cards = []
    if run.best is not None:
        value, step = run.best
        where = "" if step is None else f"best, at step {step}"
        cards.append((str(run.config.get("metric_for_best_model")), value_of(value), where))
    last = last_logged(run.metrics)
    deciding = main_metric(_newest_evaluation(run) or last)
    if deciding is not None and run.best is None:
        cards.append((deciding[0], value_of(deciding[1]), "last"))
    losses = column(run.metrics, "loss")
    if len(losses := losses[np.isfinite(losses)]):
        cards.append(("training loss", value_of(float(losses[-1])), f"from {value_of(float(losses[0]))}"))
    return cards


def _length_cards(run: StoredRun) -> list[tuple[str, str, str]]:
    end, cards = run.finished, []
    step = run.last_step
    if step is not None:
        most = end.max_steps if end is not None else None
        cards.append(("steps", f"{step:,}", "" if most is None or most == step else f"of {most:,}"))
    parts = goodput(run.laps)
    if parts:
        total = sum(parts.values())
        share = parts.get("computing", 0.0) / total
        cards.append(("time", duration(total), f"{share:.0%} of it computing"))
    return cards


def _speed_cards(run: StoredRun) -> list[tuple[str, str, str]]:
    cards = []
    mfu, memory = column(run.performance, "mfu"), column(run.performance, "memory")
    note = f"{np.nanmedian(mfu):.0%} of what the GPU can do" if np.isfinite(mfu).any() else "median"
    for unit in ("tokens", "samples"):
        rates = column(run.performance, f"{unit}_per_second")
        # The lines of the last evaluation and save train nothing.
        rates = rates[np.isfinite(rates) & (rates > 0)]
        if len(rates):
            cards.append(("speed", rate_of(float(np.median(rates)), unit), note))
            break
    if np.isfinite(memory).any():
        cards.append(("memory", size_of(float(np.nanmax(memory))), "at most"))
    return cards


def _newest_evaluation(run: StoredRun) -> Entry:
    return next((line for line in reversed(run.metrics) if any(name.startswith("eval_") for name in line)), {})


def _last_evaluation(run: StoredRun) -> list[tuple[str, str, str, str]]:
    """Each metric of evaluations: its last value, and its best where one can tell what is better."""
    rows = []
    for name, value in _newest_evaluation(run).items():
        if not name.startswith("eval_") or is_bookkeeping(name) or (last := number(value)) is None:
            continue
        best, at = _best_of(run, name)
        rows.append((name, value_of(last), best, at))
    return rows[:40]


def _best_of(run: StoredRun, name: str) -> tuple[str, str]:
    deciding = str(run.config.get("metric_for_best_model"))
    if name == deciding or name == f"eval_{deciding}":
        found = run.best
    elif name.endswith("loss"):
        found = run.best_of(name, is_greater_better=False)
    else:
        return "", ""
    return ("", "") if found is None else (value_of(found[0]), "" if found[1] is None else f"{found[1]:,}")
