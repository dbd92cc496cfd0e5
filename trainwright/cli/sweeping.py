"""The command that searches: sweep."""

from __future__ import annotations

import json
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from trainwright.cli.app import app, program
from trainwright.cli.experiments import OVERRIDES, ExperimentFile, Import, Trust, import_files, outcome, rerun_command

if TYPE_CHECKING:
    from trainwright.search.results import SweepResult


@app.command(context_settings=OVERRIDES)
def sweep(
    context: typer.Context,
    experiment: ExperimentFile,
    trials: Annotated[
        int | None, typer.Option(min=1, help="How many trainings; more than before adds to them.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Trials at the same time, each in a process of its own.")] = 1,
    processes: Annotated[int, typer.Option("--nproc", "-N", min=1, help="Processes of each trial.")] = 1,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin another study in a new numbered folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print sweep.json in place of lines.")] = False,
    trust: Trust = False,
    imports: Import = None,
) -> None:
    """Search for the best settings, as the experiment's search: section describes them.

    The same command again goes on where it was stopped, trials in the middle from their checkpoints. Values of the file
    can be changed behind it: search.trials=50 training.num_train_epochs=3.
    """
    with outcome(lambda: rerun_command(sys.argv[1:])):
        from trainwright.config.loading import load_experiment
        from trainwright.search.sweep import sweep as search

        import_files(imports)
        overrides = [*context.args, *([] if trials is None else [f"search.trials={trials}"])]
        found = search(
            load_experiment(experiment, overrides, trust=trust),
            workers=workers,
            processes=processes,
            imports=imports or [],
            fresh=fresh,
            say=(lambda line: None) if as_json else typer.echo,
        )
        if as_json:
            typer.echo((found.folder / "sweep.json").read_text(encoding="utf-8").rstrip())
            return
        _say_best(found)


def _say_best(found: SweepResult) -> None:
    if found.best is None:
        typer.echo(f"No trial came to its end with a number. What happened to each is in {found.report}.")
        return
    if len(found.front) > 1:
        typer.echo(f"{len(found.front)} trials are beaten by no other in everything: see the report.")
    values = ", ".join(f"{name} {value:.6g}" for name, value in found.best.values.items())
    typer.echo(f"Best: trial {found.best.number}, {values}")
    for name, value in found.best.settings.items():
        typer.echo(f"  {name}: {json.dumps(value)}")
    for name, share in list(found.importance.items())[:3]:
        typer.echo(f"  {name} explains {share:.0%} of the spread")
    typer.echo(f"The report is {found.report}; the best model is in {found.best.folder}.")
    words = [*program(), "train", str(found.best_experiment)]
    typer.echo(f"Train the best anew: {shlex.join(words)}")
