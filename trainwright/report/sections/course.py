"""Where the time went, what made it faster, and what happened on the way."""

from __future__ import annotations

import re
from collections import Counter

from trainwright.plots.charts import share_bar
from trainwright.report.blocks import Block, Folded, Picture, Section, Table, Text
from trainwright.report.lines import Entry, number
from trainwright.report.stored_run import StoredRun
from trainwright.report.time_spent import goodput, starts_of
from trainwright.report.words import duration, shortened, size_of, value_of, when

_COLOURS = {
    "computing": "#228833",
    "waiting for data": "#ee6677",
    "saving": "#4477aa",
    "evaluating": "#66ccee",
    "starting": "#ccbb44",
    "done again": "#aa3377",
}
#: Events that come with every run: they stand in a folder.
_HOUSEKEEPING = {"saved", "deleted", "acceleration"}
_MOST_EVENTS = 200
_HEAD = ("step", "when", "what", "")
#: When it happened, and the cells of its line.
Row = tuple[float, tuple[str, str, str, str]]


def time_section(run: StoredRun) -> Section:
    """The goodput bar and its numbers."""
    parts = goodput(run.laps)
    if not parts:
        return Section("Where the time went")
    total = sum(parts.values())
    rows = [(name, duration(value), f"{value / total:.1%}") for name, value in parts.items()]
    words = ", ".join(f"{name} {share}" for name, _, share in rows)
    blocks: list[Block] = [
        Picture(f"Shares of the time: {words}", [("", share_bar(parts, _COLOURS))]),
        Table(("", "time", "share"), rows),
    ]
    again = [start for start, step in starts_of(run.laps) if step]
    if again:
        times = "once" if len(again) == 1 else f"{len(again)} times"
        blocks.append(Text(f"It was started again {times}; steps that were done again count as such."))
    return Section("Where the time went", blocks)


def acceleration_section(run: StoredRun) -> Section:
    """What was used in place of the plain way, by the newest event that tells of it, and the measured speed."""
    found = next((event for event in reversed(run.events) if event.get("kind") == "acceleration"), None)
    if found is None:
        return Section("Acceleration")
    blocks: list[Block] = [Text(shortened(str(found.get("message", "")), 2000))]
    left_out = found.get("left_out")
    if isinstance(left_out, dict) and left_out:
        rows = [(value_of(str(name)), value_of(str(why))) for name, why in list(left_out.items())[:20]]
        blocks.append(Folded("What was left out, and why", [Table(("technique", "because"), rows)]))
    if rows := _gain(found.get("gain")):
        blocks.append(Table(("the first batch, forward and backward", "time", "memory"), rows))
    return Section("Acceleration", blocks)


def _gain(found: object) -> list[tuple[str, str, str]]:
    if not isinstance(found, dict):
        return []
    rows = []
    for key, name in (("plain", "in the plain way"), ("accelerated", "accelerated")):
        cost = found.get(key)
        if isinstance(cost, dict) and (seconds := number(cost.get("seconds"))) is not None:
            most = number(cost.get("bytes"))
            rows.append((name, f"{seconds * 1e3:,.3g} ms", "" if most is None else size_of(most)))
        elif cost is None:
            rows.append((name, "does not fit into memory", ""))
    return rows


def profile_section(run: StoredRun) -> Section:
    """What a profiler said of some steps (``profile="steps 5-10"``)."""
    lines = [line.strip() for line in run.profile.splitlines()]
    said = [line for line in lines if line and not line.startswith(("|", "#"))]
    head, *rows = [_cells(line) for line in lines if line.startswith("|")] or [[]]
    blocks: list[Block] = [Text(shortened(line.replace("`", ""))) for line in said[:10]]
    if rows:
        # The first one is the rule below the head.
        fitting = [row for row in rows[1:40] if len(row) == len(head)]
        blocks.append(Folded("The longest operators", [Table(head, fitting)]))
    return Section("Profile", blocks)


def _cells(line: str) -> list[str]:
    """The words of a row of a Markdown table.

    >>> _cells("| a | std::vector&lt;int> \\\\| b |")
    ['a', 'std::vector<int> | b']
    """
    cells = re.split(r"(?<!\\)\|", line.strip("|"))
    return [cell.strip().replace("\\|", "|").replace("&lt;", "<") for cell in cells]


def events_section(run: StoredRun) -> Section:
    """What happened, in order; saves and the like are counted, and listed in a folder."""
    if not run.events:
        return Section("What happened")
    telling = [event for event in run.events if event.get("kind") not in _HOUSEKEEPING]
    restarts = _restarts(run)
    counts = Counter(str(event.get("kind"))[:40] for event in run.events)
    words = [f"{name.replace('_', ' ')} {times}x" for name, times in counts.most_common(20)]
    if restarts:
        words.append(f"started again {len(restarts)}x")
    blocks: list[Block] = [Text(", ".join(words))]
    shown = sorted([*_rows(telling), *restarts], key=lambda row: row[0])
    if shown:
        blocks.append(Table(_HEAD, [row for _, row in shown[-_MOST_EVENTS:]]))
    kept = [event for event in run.events if event.get("kind") in _HOUSEKEEPING]
    if kept:
        table = Table(_HEAD, [row for _, row in _rows(kept[-_MOST_EVENTS:])])
        blocks.append(Folded(f"Saves and other housekeeping ({len(kept)})", [table]))
    return Section("What happened", blocks)


def _rows(events: list[Entry]) -> list[Row]:
    return [
        (
            number(event.get("time")) or 0.0,
            (
                value_of(event.get("step")) if event.get("step") is not None else "",
                when(event.get("time")),
                str(event.get("kind"))[:40].replace("_", " "),
                shortened(str(event.get("message", ""))),
            ),
        )
        for event in events
    ]


def _restarts(run: StoredRun) -> list[Row]:
    return [
        (start, (str(step), when(start), "started again", f"by another process, from step {step}"))
        for start, step in starts_of(run.laps)
        if step
    ]
