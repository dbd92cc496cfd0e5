"""The phases of a training, and what each came to."""

from __future__ import annotations

from trainwright.report.blocks import Section, Table
from trainwright.report.lines import Entry, number
from trainwright.report.stored_run import StoredRun, main_metric
from trainwright.report.words import shortened, value_of

_MOST_PHASES = 100
_HEAD = ("phase", "epochs", "from step", "trained parameters", "rate", "schedule", "data", "evaluated at its end")


def phases_section(run: StoredRun) -> Section:
    """One line for each phase that has begun, from the event log."""
    begun: dict[int, Entry] = {}
    ended: dict[int, Entry] = {}
    for event in run.events:
        if not isinstance(number_of := event.get("number"), int):
            continue
        if event.get("kind") == "phase":
            (begun if "learning_rate" in event else ended)[number_of] = event
        elif event.get("kind") == "phases_changed" and number_of in begun:
            # As it was from then on.
            later = {name: event[name] for name in ("until_epoch", "learning_rate", "schedule") if name in event}
            begun[number_of] = {**begun[number_of], **later}
    numbers = sorted(begun)[:_MOST_PHASES]
    if not numbers:
        return Section("Phases")
    firsts = [number(begun[one].get("step")) or 0 for one in numbers]
    rows = []
    for place, one in enumerate(numbers):
        after = firsts[place + 1] if place + 1 < len(firsts) else float("inf")
        event, end = begun[one], ended.get(one, {}).get("epoch", begun[one].get("until_epoch"))
        rows.append(
            (
                shortened(str(event.get("phase", "")), 60),
                f"{value_of(event.get('epoch'))} to {value_of(end)}",
                value_of(event.get("step")),
                value_of(event.get("trained_parameters")),
                value_of(event.get("learning_rate")),
                shortened(str(event.get("schedule", "")), 60),
                "its own" if event.get("own_data") is True else "the run's",
                _at_its_end(run, firsts[place], after),
            )
        )
    return Section("Phases", [Table(_HEAD, rows)])


def _at_its_end(run: StoredRun, first: float, after: float) -> str:
    """The newest evaluation within the steps of a phase."""
    for line in reversed(run.metrics):
        step = number(line.get("step"))
        found = main_metric(line, run.config.get("metric_for_best_model"))
        if step is not None and first < step <= after and found is not None and found[0].startswith("eval_"):
            return f"{found[0]} {value_of(found[1])}"
    return ""
