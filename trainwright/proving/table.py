"""What a person reads: a table, and below it what a failure means."""

from __future__ import annotations

import io
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trainwright.proving.result import NOTHING_TRIED, Proof, Row

_OUTCOMES = {"pass": "pass", "fail": "[bold red]FAIL[/]", "not tried": "[dim]not tried[/]"}


def show(proof: Proof, console: Console) -> None:
    """Print a proof."""
    title = f"{proof.model} on {proof.device}, in {proof.format}: {proof.samples} samples an update, dropout off"
    # Narrow enough for 80 columns.
    spaces: dict[str, Any] = {"padding": (0, 1, 0, 0), "pad_edge": False, "collapse_padding": True}
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=SIMPLE_HEAD, **spaces)
    table.add_column("what is changed", no_wrap=True)
    for column in ("loss", "gradient", "weights"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("may be", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in proof.rows:
        table.add_row(*(escape(cell) for cell in _numbers(row)), _OUTCOMES[row.outcome])
    console.print(table)
    for line in lines_below(proof):
        console.print(escape(line), highlight=False, soft_wrap=True)


def text_of(proof: Proof) -> str:
    """The same without colours, as wide as it has to be."""
    written = io.StringIO()
    show(proof, Console(file=written, width=120, color_system=None))
    return written.getvalue()


def _numbers(row: Row) -> list[str]:
    if row.outcome == "not tried" or row.bounds is None:
        return [row.name, "", "", "", ""]
    allowed = f"{row.bounds.gradient:.0e}" if row.bounds.gradient else "0"
    return [row.name, _size(row.loss), _size(row.gradient), _size(row.weights), allowed]


def _by_reason(proof: Proof, outcome: str) -> dict[str, str]:
    """Rows with the same reason in one line, each with where it is worst."""
    found: dict[str, list[str]] = {}
    for row in proof.rows:
        if row.outcome == outcome:
            place = f" (furthest at {row.worst})" if row.worst else ""
            found.setdefault(row.why or "", []).append(f"{row.name}{place}")
    return {why: "; ".join(names) for why, names in found.items()}


def _size(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1e}" if value else "0"


def lines_below(proof: Proof) -> list[str]:
    """What stands under the table: failures, what was not tried, what the numbers are."""
    lines = [f"FAIL: {names}: {why}" for why, names in _by_reason(proof, "fail").items()]
    lines += [f"Not tried: {names}: {why}" for why, names in _by_reason(proof, "not tried").items()]
    if not proof.is_tried:
        lines.append(NOTHING_TRIED)
    lines += [f"Note: {note}" for note in proof.notes]
    bounds = {
        f"{row.bounds.gradient:.0e}" if row.bounds.gradient else "0": row.bounds.why
        for row in proof.rows
        if row.bounds is not None
    }
    if bounds:
        lines.append(
            "Deviations are the largest of all steps and parameters, as shares of what they should be. What they may "
            f"be: {'; '.join(f'{size}, {why}' for size, why in bounds.items())}. Weights may deviate by what the "
            "optimizer makes of that, losses of several processes by 1e-06: they are exchanged in float32."
        )
    counts = {outcome: sum(row.outcome == outcome for row in proof.rows) for outcome in ("pass", "fail", "not tried")}
    lines.append(
        f"{counts['pass']} pass, {counts['fail']} fail, {counts['not tried']} not tried, in {proof.seconds:.0f} s "
        f"(seed {proof.seed}). Nothing of it stays: copies were trained, in a temporary folder."
    )
    return lines
