"""Where to begin: ``trainwright init``, and what ``trainwright`` alone says."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli.app import app, program
from trainwright.cli.experiments import outcome
from trainwright.config.errors import ConfigError


@app.command()
def init(
    data: Annotated[
        str | None, typer.Option(help="A file, a folder, digits or characters (built in), or a name on the Hub.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="table, texts, language-model, images or chat.")] = None,
    model: Annotated[str | None, typer.Option(help="mlp, cnn, char-lm, or a name on the Hub.")] = None,
    target: Annotated[str | None, typer.Option(help="The column to predict.", show_default="a usual name")] = None,
    output: Annotated[Path, typer.Option(help="The file to write.")] = Path("experiment.yaml"),
) -> None:
    """Write an experiment with comments: answers to three questions, or to none where --data is given."""
    with outcome():
        from trainwright.experiment.beginning import read_for_init, wanted, write_experiment

        asks = data is None
        if data is None:
            if not _is_at_a_terminal():
                raise ConfigError("init asks questions at a terminal; here say --data (and --task, --model, --target).")
            data = typer.prompt("Which data? A file, a folder, or digits (built in)", default="digits")
        what = wanted(read_for_init(data), task, model, target)
        if asks:
            kind = task or typer.prompt(
                "What is it for? table, texts, language-model, images or chat", default=what.kind
            )
            what = wanted(data, kind, model, target)
            model = model or typer.prompt("Which model?", default=what.model)
            what = wanted(data, kind, model, target)
        for path in write_experiment(what, output):
            typer.echo(f"Wrote {path}")
        typer.echo(f"Next: {shlex.join([*program(), 'check', str(output)])}")


def _is_at_a_terminal() -> bool:
    return sys.stdin.isatty()
