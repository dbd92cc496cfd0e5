"""What a person reads: a table, and below it what a failure means."""

from __future__ import annotations

import io

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trainwright.proving.result import Proof, Row

_OUTCOMES = {"pass": "pass", "fail": "[bold red]FAIL[/]", "not tried": "[dim]not tried[/]"}


def show(proof: Proof, console: Console) -> None:
    """Print a proof."""
    title = f"{proof.model} on {proof.device}, in {proof.format}: {proof.samples} samples an update, dropout off"
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=SIMPLE_HEAD)
    table.add_column("what is changed", no_wrap=True)
    for column in ("loss", "gradient", "weights"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("may be", overflow="fold")
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
    bounds = row.bounds
    allowed = [f"{bounds.gradient:.0e}" if bounds.gradient else "0"]
    allowed += [f"loss {bounds.loss:.0e}"] if bounds.loss != bounds.gradient else []
    # Of weights the bound is measured, and often no more than a little above.
    allowed += [f"weights {bounds.weights:.0e}"] if bounds.weights > 1.5 * bounds.gradient else []
    return [row.name, _size(row.loss), _size(row.gradient), _size(row.weights), ", ".join(allowed)]


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
    lines += [f"Note: {note}" for note in proof.notes]
    whys = dict.fromkeys(row.bounds.why for row in proof.rows if row.bounds is not None)
    if whys:
        lines.append(
            "Deviations are the largest of all steps and parameters, as shares of what they should be. What they may "
            f"be: {'; '.join(whys)}; of weights, what the optimizer makes of that."
        )
    counts = {outcome: sum(row.outcome == outcome for row in proof.rows) for outcome in ("pass", "fail", "not tried")}
    lines.append(
        f"{counts['pass']} pass, {counts['fail']} fail, {counts['not tried']} not tried, in {proof.seconds:.0f} s "
        f"(seed {proof.seed}). Nothing of it stays: copies were trained, in a temporary folder."
    )
    return lines
