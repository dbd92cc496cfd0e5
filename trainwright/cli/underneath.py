"""The command that runs a script, or another library's command, with our Trainer underneath."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

import trainwright.compat
from trainwright.cli.app import BAD_USAGE, app

#: Python finds sitecustomize.py there, which opens the door in every process that is started with it.
STARTUP = Path(trainwright.compat.__file__).parent / "startup"


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
)
def run(
    context: typer.Context,
    script: Annotated[
        str, typer.Argument(help="A Python script, -m and a module, or a command such as torchrun or trl.")
    ],
) -> None:
    """Run a script as it is, with this Trainer in place of transformers': also underneath TRL and its like.

    Holds for that process and all that it starts. `trainwright env` says whether it is so; nothing stays behind.
    """
    try:
        words = _command(script, context.args)
    except ValueError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(BAD_USAGE) from None
    sys.stdout.flush()
    # In place of this process, so that signals and the exit code are the script's own.
    os.execve(words[0], words, with_startup(dict(os.environ)))


def with_startup(environment: dict[str, str]) -> dict[str, str]:
    """``environment`` for processes in which transformers' Trainer is ours."""
    # An empty entry stays: to Python it is the current folder.
    words = environment["PYTHONPATH"].split(os.pathsep) if environment.get("PYTHONPATH") else []
    return environment | {"PYTHONPATH": os.pathsep.join([str(STARTUP), *(w for w in words if w != str(STARTUP))])}


def _command(script: str, rest: list[str]) -> list[str]:
    if script == "-m" and not rest:
        raise ValueError("-m needs a module: `trainwright run -m package.module`.")
    # Without .py or a folder before it, a word is a command: no file of that name in this folder is run instead.
    if script == "-m" or script.endswith(".py") or Path(script).name != script:
        if script != "-m" and not Path(script).is_file():
            raise ValueError(f"there is no script {script}.")
        return [sys.executable, script, *rest]
    # That of this environment first, which need not be on the PATH.
    found = shutil.which(script, path=str(Path(sys.executable).parent)) or shutil.which(script)
    if found is None:
        raise ValueError(
            f"{script} is neither a Python script nor a command: write `trainwright run train.py`, `trainwright run -m "
            "package.module` or `trainwright run torchrun train.py`, and options of your own after it."
        )
    return [found, *rest]
