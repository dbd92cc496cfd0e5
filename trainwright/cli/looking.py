"""Commands that look at an experiment before it is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli.app import app
from trainwright.cli.experiments import OVERRIDES, ExperimentFile, Import, Trust, import_files, outcome
from trainwright.config.errors import ConfigError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, as docs/run-commands.md describes it.")]


@app.command(context_settings=OVERRIDES)
def look(
    context: typer.Context,
    experiment: ExperimentFile,
    rows: Annotated[int, typer.Option(min=1, help="Samples of the batch to show.")] = 4,
    depth: Annotated[int, typer.Option(min=0, help="Levels of layers below the outermost.")] = 1,
    as_json: AsJson = False,
    trust: Trust = False,
    imports: Import = None,
) -> None:
    """Show the first training batch as the model sees it, and the model: layers, parameters, operations, memory.

    What is trained of a text stands in «». Nothing is trained or written.
    """
    with outcome():
        from trainwright.config.loading import load_experiment
        from trainwright.experiment.looking import look as look_at

        import_files(imports)
        batch, model = look_at(load_experiment(experiment, context.args, trust=trust), rows=rows, depth=depth)
    if as_json:
        typer.echo(json.dumps({"batch": batch.as_dict(), "model": model.as_dict()}, indent=2))
    else:
        typer.echo(f"{batch}\n\n{model}")


@app.command("lr-find", context_settings=OVERRIDES)
def lr_find(
    context: typer.Context,
    experiment: ExperimentFile,
    least: Annotated[float, typer.Option("--from", help="The first rate.")] = 1e-7,
    greatest: Annotated[float, typer.Option("--to", help="The last rate.")] = 1.0,
    steps: Annotated[int, typer.Option(min=20, help="Rates to try, a training step each.")] = 100,
    picture: Annotated[Path | None, typer.Option(help="Write the curve there, as SVG.")] = None,
    as_json: AsJson = False,
    trust: Trust = False,
    imports: Import = None,
) -> None:
    """Try growing learning rates on a copy of the model, and say at which one the loss falls fastest."""
    with outcome():
        from trainwright.config.loading import load_experiment
        from trainwright.core.files import writing_there
        from trainwright.experiment.looking import lr_find as find_rate

        if picture is not None and picture.is_dir():
            raise ConfigError(f"command line: --picture {picture}: that is a folder; give the name of a file.")
        if picture is not None and not picture.absolute().parent.is_dir():
            raise ConfigError(f"command line: --picture {picture}: there is no such folder.")
        import_files(imports)
        loaded = load_experiment(experiment, context.args, trust=trust)
        found = find_rate(loaded, least=least, greatest=greatest, steps=steps)
        if picture is not None:
            if not found.picture:
                raise ConfigError("command line: --picture is drawn by matplotlib: pip install matplotlib")
            with writing_there(picture) as file:
                file.write(found.picture.encode())
    typer.echo(json.dumps(found.as_dict(), indent=2) if as_json else str(found))
    if not as_json and found.suggestion is not None:
        typer.echo(f"Train with it: training.learning_rate={found.suggestion:g}")
