"""``trainwright tail``: what a run says, from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli.app import BAD_USAGE, app


@app.command()
def tail(
    run: Annotated[Path, typer.Argument(help="The folder of a run.", exists=True, file_okay=False)],
    lines: Annotated[int, typer.Option(min=0, help="How many of the newest lines.")] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing what comes, until the run ends.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line (docs/run-commands.md).")] = False,
) -> None:
    """The newest of a run's log and of its events, in the order of time."""
    from trainwright.report.stored_run import EVENTS, is_run
    from trainwright.report.tailing import Tail, for_people, for_programs

    if not is_run(run) and not (run / EVENTS).is_file():
        typer.echo(
            f"Error: {run} is not the folder of a run: it has no config.yaml, run.json or metrics.jsonl.", err=True
        )
        raise typer.Exit(BAD_USAGE)
    shown = for_programs if as_json else for_people
    tail = Tail(run, lines)
    for line in tail.newest():
        typer.echo(shown(line))
    for line in tail.follow() if follow else ():
        typer.echo(shown(line))
