"""The command that makes one model of several checkpoints."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli.app import app
from trainwright.cli.experiments import outcome


class How(StrEnum):
    """What is made of the checkpoints."""

    uniform = "uniform"
    greedy = "greedy"
    snapshots = "snapshots"


_HOW = (
    "uniform: the average of their weights. greedy: begin with the best, take in each that does no harm. snapshots: an "
    "ensemble of them."
)


@app.command()
def soup(
    run: Annotated[Path, typer.Argument(help="The folder of a run.", exists=True, file_okay=False)],
    how: Annotated[How, typer.Option(help=_HOW)] = How.uniform,
    checkpoint: Annotated[
        list[str] | None, typer.Option(help="One to use, checkpoint-N; may be given several times.", show_default="all")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="What greedy chooses by.", show_default="the run's best-model metric, or loss")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Data to choose and evaluate by.", show_default="the evaluation data")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="The folder to write.", show_default="beside the run's")] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Let code run that the experiment names.")] = False,
) -> None:
    """Make one model of checkpoints of a run: an average of their weights, or an ensemble."""
    with outcome():
        from trainwright.experiment.souping import soup as make

        done = make(run, how=how.value, checkpoints=checkpoint, metric=metric, data=data, output=output, trust=trust)
    for name, value in done.alone.items():
        typer.echo(f"  {name:<22}  {value:.6g}" + ("" if name in done.ingredients else "  (left out)"))
    for name, value in done.metrics.items():
        typer.echo(f"  {name:<22}  {value:.6g}")
    typer.echo(f"The model of {', '.join(done.ingredients)} is in {done.folder}.")
