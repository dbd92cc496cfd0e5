"""Commands about recipes: show, check, apply."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli.app import app
from trainwright.cli.experiments import Import, Trust, import_files, outcome
from trainwright.config.errors import ConfigError

recipe_app = typer.Typer(no_args_is_help=True, help="Recipes: what happens to a model while it is trained, and when.")
app.add_typer(recipe_app, name="recipe")

RecipeFile = Annotated[Path, typer.Argument(help="A recipe: YAML, JSON or a Markdown card.", metavar="FILE")]
RecipeArgs = Annotated[
    str | None, typer.Option("--args", help="Other values for its variables: name=value,name=value or JSON.")
]


@recipe_app.command("show")
def show(
    file: RecipeFile,
    recipe_args: RecipeArgs = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, as docs/run-commands.md describes it.")] = False,
    imports: Import = None,
) -> None:
    """Draw what a recipe does and when, with its variables as they come out."""
    with outcome():
        from trainwright.recipes.language.reading import read_recipe
        from trainwright.recipes.language.timeline import draw, timeline

        import_files(imports)
        recipe = read_recipe(file, recipe_args)
        if as_json:
            rows = [asdict(row) for row in timeline(recipe)]
            typer.echo(json.dumps({"file": str(file), "epochs": recipe.max_epochs, "modifiers": rows}, indent=2))
            return
        width = shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 80
        lines = [
            f"{file}: {_count(len(recipe.modifiers), 'modifier')}, {_count(recipe.max_epochs, 'epoch')}",
            "",
            draw(recipe, width, ascii_only=not _speaks_unicode()),
        ]
        for stage, variables in [(None, recipe.variables), *((s.name, s.variables) for s in recipe.stages)]:
            if variables:
                lines += ["", f"variables{f' of {_literal(stage)}' if stage else ''}:"]
            lines += [f"  {_literal(name)[1:-1]} = {_literal(value)}" for name, value in variables.items()]
        typer.echo("\n".join(lines))


@recipe_app.command("check")
def check(file: RecipeFile, recipe_args: RecipeArgs = None, imports: Import = None) -> None:
    """Read a recipe and make its modifiers, without a model; exit code 2 and the line where something is wrong."""
    with outcome():
        from trainwright.recipes.building import build_modifiers
        from trainwright.recipes.language.reading import read_recipe

        import_files(imports)
        recipe = read_recipe(file, recipe_args)
        built = build_modifiers(recipe)
        typer.echo(f"{file} is good: {_count(len(built), 'modifier')}, {_count(recipe.max_epochs, 'epoch')}.")


@recipe_app.command("apply")
def apply(
    file: RecipeFile,
    source: Annotated[
        Path,
        typer.Argument(help="A saved model, a checkpoint, or a run of an experiment.", metavar="DIR", file_okay=False),
    ],
    output: Annotated[Path, typer.Option(help="The folder to write.")],
    recipe_args: RecipeArgs = None,
    model: Annotated[
        str | None, typer.Option(help="my_file.py:function that builds the model, where DIR does not say how.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="my_file.py:function that returns batches: for ranges of activations, and for gradients."),
    ] = None,
    trust: Trust = False,
    imports: Import = None,
) -> None:
    """Apply a recipe to saved weights without training: prune, quantize, take layers out; DIR stays as it is."""
    with outcome():
        from trainwright.experiment.applying import apply as apply_recipe

        import_files(imports)
        if not source.is_dir():
            raise ConfigError(f"{source} is no folder.")
        done = apply_recipe(file, source, output, recipe_args=recipe_args, model=model, data=data, trust=trust)
        if done.skipped:
            typer.echo(f"Skipped, for there is no training: {', '.join(done.skipped)}.")
        typer.echo(f"{done.sparsity:.2%} of {done.weights:,} prunable weights are zero.")
        typer.echo(f"The model is in {done.folder}.")


def _count(number: float, what: str) -> str:
    return f"{number:g} {what}{'' if number == 1 else 's'}"


def _literal(value: object) -> str:
    text = repr(value)
    return text if _speaks_unicode() else text.encode("ascii", "backslashreplace").decode()


def _speaks_unicode() -> bool:
    """Whether what is written arrives as it is."""
    return (sys.stdout.encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32")
