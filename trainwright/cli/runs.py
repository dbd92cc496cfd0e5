"""Commands that look at runs: runs, show, compare, report. They read files alone, and import no framework."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from trainwright.cli.app import app, program
from trainwright.cli.experiments import outcome

Run = Annotated[Path, typer.Argument(help="The folder of a run.", exists=True, file_okay=False)]
#: Seconds that the process which asked for a report in the background has to end.
_PATIENCE = 20.0
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, as docs/run-commands.md describes it.")]


def _print_json(facts: Any) -> None:
    typer.echo(json.dumps(facts, indent=2, default=str))


@app.command()
def runs(
    folder: Annotated[
        Path | None, typer.Argument(help="Where to look.", exists=True, file_okay=False, show_default="runs, or here")
    ] = None,
    state: Annotated[
        str | None, typer.Option(help="Those alone: training, finished, stopped, failed or interrupted.")
    ] = None,
    most: Annotated[int, typer.Option("--most", min=1, help="Lines to print, newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List runs: state, last and best metric, when they were last active, size on disk."""
    with outcome():
        from trainwright.config.errors import ConfigError
        from trainwright.report.listing import HEAD, listed, row_of, runs_below, sweeps_below
        from trainwright.report.state import STATES

        if state is not None and state not in STATES:
            raise ConfigError(f"--state {state}: choose from {', '.join(STATES)}.")
        root = folder or (Path("runs") if Path("runs").is_dir() else Path())
        found = [listed(run, root) for run in runs_below(root)]
        found = [run for run in found if state in (None, run["state"])]
        found.sort(key=lambda run: run["active"] or 0.0, reverse=True)
        if as_json:
            _print_json(found)
            return
        for one in sweeps_below(root) if state is None else []:
            typer.echo(f"{one} is a sweep: {shlex.join([*program(), 'runs', str(one)])} lists its trials.")
        if not found:
            typer.echo(f"There are no {'' if state is None else f'{state} '}runs in {root}.")
            return
        now = time.time()
        _print_table([HEAD, *(row_of(run, now) for run in found[:most])])
        if len(found) > most:
            typer.echo(f"... and {len(found) - most:,} more: --most {len(found)} lists all.")


@app.command()
def show(run: Run, as_json: AsJson = False) -> None:
    """What a run is: its state, its checkpoints, its settings, and each one that was changed on the way."""
    with outcome():
        from trainwright.report.showing import facts_of_run, lines_of_run

        facts = facts_of_run(run)
        if as_json:
            _print_json(facts)
        else:
            typer.echo("\n".join(lines_of_run(facts)))


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Folders of two runs or more.", metavar="RUN RUN...")],
    html: Annotated[Path | None, typer.Option(help="Write a page with tables and curves into this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Runs next to each other: settings that differ, numbers, and with --html their curves."""
    with outcome():
        from trainwright.config.errors import ConfigError
        from trainwright.core.files import writing_there
        from trainwright.report.comparing import (
            comparison_of,
            names_of,
            page_of_comparison,
            runs_to_compare,
            tables_of,
        )
        from trainwright.report.html_page import html_of
        from trainwright.report.page import footer

        if html is not None and (html.is_dir() or not html.absolute().parent.is_dir()):
            what = "that is a folder" if html.is_dir() else "there is no such folder"
            raise ConfigError(f"command line: --html {html}: {what}; give the name of a file.")
        compared = runs_to_compare(folders)
        found = comparison_of(compared, html)
        if html is not None:
            with writing_there(html) as file:
                file.write(html_of(page_of_comparison(compared, found), footer("compare")).encode())
        if as_json:
            _print_json(found)
            return
        for title, table in tables_of(found, names_of(compared)):
            typer.echo(f"\n{title}")
            _print_table([table.head, *table.rows])
        if html is not None:
            typer.echo(f"\nTables and curves: {html}")
        else:
            typer.echo(f"\nWith curves: {shlex.join([*program(), 'compare', *map(str, folders)])} --html compared.html")


@app.command()
def report(
    run: Run,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Curves to zoom into; plotly's script makes the file some megabytes.")
    ] = False,
    in_background: Annotated[bool, typer.Option("--in-background", hidden=True)] = False,
    as_json: AsJson = False,
) -> None:
    """Write report.html and report.md into the folder of a run: anew, from its files."""
    if in_background:
        # Of a process that ends: whoever comes after it has more to do.
        os.nice(10)
        _wait_for_its_end(run)
    with outcome():
        from trainwright.config.errors import ConfigError
        from trainwright.report.page import write_report
        from trainwright.report.sweep_page import is_sweep, write_sweep_report

        if is_sweep(run):
            if interactive:
                raise ConfigError("--interactive is for the report of a run, and this is the folder of a sweep.")
            written = write_sweep_report(run)
        else:
            written = write_report(run, interactive=interactive)
        if as_json:
            _print_json({"html": str(written.html), "markdown": str(written.markdown)})
        else:
            typer.echo(f"Wrote {written.html} and {written.markdown.name}")


def _wait_for_its_end(run: Path) -> None:
    """A process that is about to end keeps the folder a little longer; one that was started since stays."""
    from trainwright.checkpoint.run_lock import writer_in

    until = time.monotonic() + _PATIENCE
    while writer_in(run) is not None and time.monotonic() < until:
        time.sleep(0.2)


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    """Columns that fit their words; what somebody else may have written into a file moves no cursor."""
    from trainwright.report.showing import escaped

    words = [[escaped(word) for word in row] for row in rows]
    widths = [min(max(len(row[column]) for row in words), 60) for column in range(len(words[0]))]
    for row in words:
        typer.echo("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip())
