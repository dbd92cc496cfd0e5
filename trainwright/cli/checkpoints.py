"""Commands about checkpoints: verify, import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from trainwright.checkpoint.directory import all_checkpoints
from trainwright.checkpoint.manifest import has_manifest, problems_of
from trainwright.cli.app import BAD_USAGE, FAILED, app


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(help="A run directory, or one checkpoint.", exists=True, file_okay=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, as docs/run-commands.md describes it.")] = False,
) -> None:
    """Check every file of a run's checkpoints against what was written; exit code 1 if any is damaged."""
    checkpoints = [folder] if has_manifest(folder) else all_checkpoints(folder)
    if not checkpoints:
        typer.echo(f"{folder} holds no finished checkpoint.", err=True)
        raise typer.Exit(BAD_USAGE)
    found = {path.name: problems_of(path) for path in checkpoints}
    if as_json:
        typer.echo(
            json.dumps([{"checkpoint": name, "problems": problems} for name, problems in found.items()], indent=2)
        )
    else:
        for name, problems in found.items():
            typer.echo(f"{name}: {'; '.join(problems) if problems else 'good'}")
    if any(found.values()):
        raise typer.Exit(FAILED)


@app.command("import")
def import_foreign(
    path: Annotated[
        Path,
        typer.Argument(
            help="A checkpoint-N folder of transformers' Trainer, or a .ckpt file of Lightning.", exists=True
        ),
    ],
    output: Annotated[
        Path | None, typer.Option(help="The folder to write.", show_default="imported/checkpoint-N beside it")
    ] = None,
    strip_prefix: Annotated[
        str | None, typer.Option(help="Lightning: what to take off the weights' names, for example model.")
    ] = None,
) -> None:
    """Turn another library's checkpoint into one to resume from; nothing in it is run, the original stays."""
    from trainwright.checkpoint.interchange.importing import import_checkpoint

    try:
        done = import_checkpoint(path, output, strip_prefix=strip_prefix)
    except (ValueError, OSError) as error:
        _fail(error)
    typer.echo(f"Imported step {done.step} of a {done.library} run into {done.folder}.")
    _tell(done.notes)
    typer.echo(f'Resume with: trainer.train(resume_from_checkpoint="{done.folder}")')


def _fail(error: Exception) -> NoReturn:
    """Say what went wrong and leave with the code that fits."""
    typer.echo(f"Error: {error}", err=True)
    raise typer.Exit(BAD_USAGE if isinstance(error, FileExistsError) else FAILED) from None


def _tell(notes: list[str]) -> None:
    for note in notes:
        typer.echo(f"Note: {note}.")
