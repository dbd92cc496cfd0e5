"""The command that says beforehand what fits into a GPU."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from trainwright.cli.app import app
from trainwright.cli.experiments import OVERRIDES, ExperimentFile, Import, Trust, import_files, outcome

_GIB = 2**30
#: Columns of the table: title, and the parts that are summed in it.
_COLUMNS = {
    "weights": ("weights",),
    "gradients": ("gradients",),
    "optimizer": ("optimizer",),
    "activations": ("activations", "batch", "half_weights"),
    "gathered": ("gathered",),
    "buffers": ("temporary", "communication", "workspaces"),
}


@app.command(context_settings=OVERRIDES)
def estimate(
    context: typer.Context,
    experiment: ExperimentFile,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs that train together.")] = 1,
    memory: Annotated[
        float | None, typer.Option(help="GiB of one GPU.", show_default="those of the GPU in this machine")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, sizes in bytes.")] = False,
    trust: Trust = False,
    imports: Import = None,
) -> None:
    """Memory per GPU for each way to spread a training, and whether it fits; needs neither a GPU nor weights."""
    with outcome():
        from trainwright.config.loading import load_experiment
        from trainwright.experiment.estimating import estimate as estimate_experiment

        import_files(imports)
        plan = estimate_experiment(load_experiment(experiment, context.args, trust=trust), gpus=gpus, memory=memory)
    if as_json:
        typer.echo(json.dumps(plan.as_dict(), indent=2))
        return
    for line in _table(plan):
        typer.echo(line)


def _table(plan: Any) -> list[str]:
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in plan.batch.items())
    lines = [f"{plan.parameters:,} parameters, {plan.trained:,} of them trained; {plan.gpus} GPUs; at once: {shapes}"]
    titles = [*_COLUMNS, "besides", "total"]
    lines.append(f"{'GiB per GPU':38}" + "".join(f"{title:>13}" for title in titles) + "  fits")
    for one in plan.estimates:
        sizes = [sum(one.parts.get(part, 0) for part in parts) for parts in _COLUMNS.values()]
        sizes += [sum(one.besides.values()), one.total]
        fits = {None: "?", True: "yes", False: "no"}[plan.fits(one)]
        name = f"{one.strategy}{', recomputing' if one.recompute else ''}"
        host = f" (+ {one.host / _GIB:.2f} GiB of main memory)" if one.host else ""
        lines.append(f"{name:38}" + "".join(f"{size / _GIB:13.2f}" for size in sizes) + f"  {fits}{host}")
    if plan.memory is None:
        lines.append("This machine has no GPU: say what one has with --memory 80.")
    else:
        lines.append(f"A GPU has {plan.memory / _GIB:.1f} GiB.")
    lines += [f"Not counted: {', '.join(plan.left_out)}."] if plan.left_out else []
    return lines
