"""The command that compares trainings which should be the same."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from trainwright.cli.app import FAILED, app
from trainwright.cli.experiments import OVERRIDES, ExperimentFile, Import, Trust, import_files, outcome


@app.command(context_settings=OVERRIDES)
def prove(
    context: typer.Context,
    experiment: ExperimentFile,
    budget: Annotated[float, typer.Option(min=0.001, help="Seconds; what does not fit is not tried.")] = 60.0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Chooses the step to resume after.", show_default="another each time")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, as docs/proving.md describes it.")] = False,
    trust: Trust = False,
    imports: Import = None,
) -> None:
    """Show that batch cuts, accumulation, processes, checkpointing, padding and a resume change nothing here.

    Copies of the model are trained for a few steps on the first samples, in a temporary folder. Exit code 1 if
    something changes a loss, a gradient or a weight by more than rounding: the table names it, the parameter and the
    usual cause; 2 if nothing was tried.
    """
    with outcome():
        from trainwright.config.loading import load_experiment
        from trainwright.experiment.proving import prove as prove_experiment

        import_files(imports)
        loaded = load_experiment(experiment, context.args, trust=trust)
        if not as_json:
            typer.echo(f"Training copies, for up to {budget:g} s ...", err=True)
        proof = prove_experiment(loaded, budget=budget, seed=seed)
    if as_json:
        typer.echo(json.dumps(proof.as_dict(), indent=2))
    else:
        from rich.console import Console

        from trainwright.proving.table import show

        show(proof, Console())
    if not proof.is_tried:
        typer.echo(
            "Nothing is proven: no row was tried in which something is changed. Give it a larger --budget.", err=True
        )
        raise typer.Exit(2)
    raise typer.Exit(0 if proof.holds else FAILED)
