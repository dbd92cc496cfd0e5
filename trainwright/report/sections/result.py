"""What came out: the numbers that one looks for first, and what stands next to it."""

from __future__ import annotations

import math

import numpy as np

from trainwright.report.blocks import Block, Cards, Section, Table, Text
from trainwright.report.facts import is_bookkeeping
from trainwright.report.lines import Entry, column, number
from trainwright.report.stored_run import StoredRun, last_logged, main_metric
from trainwright.report.time_spent import goodput
from trainwright.report.words import duration, of_total, rate_of, value_of


def result(run: StoredRun) -> Section:
    """The best and the last numbers, how long it took and how fast it went."""
    cards = [*_metric_cards(run), *_length_cards(run), *_speed_cards(run)]
    blocks: list[Block] = [Cards(cards)] if cards else [Text("Nothing was logged.")]
    if (step := _first_without_a_loss(run)) is not None:
        blocks.append(Text(f"The loss is not a number from step {step:,} on, or in between: NaN or infinity."))
    if table := _metrics_table(run):
        blocks.append(table)
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
        cards.append((_key(run.config.get("metric_for_best_model")), value_of(value), where))
    last = last_logged(run.metrics)
    deciding = main_metric(_newest_evaluation(run) or last)
    if deciding is not None and run.best is None and deciding[0].startswith("eval_"):
        cards.append((deciding[0], value_of(deciding[1]), "last"))
    losses = column(run.metrics, "loss")
    if len(losses := losses[np.isfinite(losses)]):
        cards.append(("training loss", value_of(float(losses[-1])), f"from {value_of(float(losses[0]))}"))
    return cards


def _length_cards(run: StoredRun) -> list[tuple[str, str, str]]:
    cards = []
    step, most = run.last_step, run.max_steps
    if step is not None:
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
    note = f"{np.nanmedian(mfu):.0%} of what the GPU can do" if np.isfinite(mfu).any() else "median of training alone"
    for unit in ("tokens", "samples"):
        rates = column(run.performance, f"{unit}_per_second")
        # The lines of the last evaluation and save train nothing.
        rates = rates[np.isfinite(rates) & (rates > 0)]
        if len(rates):
            cards.append(("speed", rate_of(float(np.median(rates)), unit), note))
            break
    if np.isfinite(memory).any():
        cards.append(("memory", of_total(int(np.nanmax(memory)), None), "at most"))
    return cards


def _newest_evaluation(run: StoredRun) -> Entry:
    return next((line for line in reversed(run.metrics) if any(name.startswith("eval_") for name in line)), {})


def _metrics_table(run: StoredRun) -> Table | None:
    """Each metric's last value, its best where one can tell what is better, and what it was where the run was best."""
    last = _last_evaluations(run)
    best_step = None if run.best is None else run.best[1]
    there = _evaluations_at(run, best_step)
    # Of a single evaluation, or where the last one is the best, it would say the same again.
    shows_best = any(number(last[name]) != number(there.get(name, last[name])) for name in last)
    head = ("metric", "last", "best", "at step", *((f"at the best step ({best_step:,})",) if shows_best else ()))
    rows = []
    for name, value in list(last.items())[:40]:
        best, at = _best_of(run, name)
        beside = (value_of(there[name]) if name in there else "",) if shows_best else ()
        rows.append((name, value_of(number(value)), best, at, *beside))
    return Table(head, rows) if rows else None


def _last_evaluations(run: StoredRun) -> Entry:
    """The newest value of each metric: with several sets each has a line of its own."""
    found: Entry = {}
    for line in run.metrics:
        for name, value in line.items():
            if name.startswith("eval_") and not is_bookkeeping(name) and number(value) is not None:
                found[name] = value
    return found


def _evaluations_at(run: StoredRun, step: int | None) -> Entry:
    """The first values of a step: those after the training are of the model that was kept, perhaps of another."""
    found: Entry = {}
    for line in run.metrics if step is not None else ():
        if line.get("step") == step:
            found = {**{name: value for name, value in line.items() if name.startswith("eval_")}, **found}
    return found


def _key(metric: object) -> str:
    """What a metric is logged as.

    >>> _key("accuracy"), _key("eval_loss")
    ('eval_accuracy', 'eval_loss')
    """
    return str(metric) if str(metric).startswith("eval_") else f"eval_{metric}"


def _best_of(run: StoredRun, name: str) -> tuple[str, str]:
    deciding = run.config.get("metric_for_best_model")
    if name == _key(deciding):
        found = run.best
    elif name.endswith("loss"):
        found = run.best_of(name, is_greater_better=False)
    else:
        return "", ""
    return ("", "") if found is None else (value_of(found[0]), "" if found[1] is None else f"{found[1]:,}")
