"""Commands and their options. Heavy libraries are imported inside the commands, so that ``--help`` answers at once.

Exit codes: 0 done, 1 failed, 2 bad usage, 75 stopped by a signal (the same command resumes), 130 Ctrl-C.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
import threading
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from trainwright.callbacks.environment import environment_facts
from trainwright.checkpoint.directory import list_checkpoints
from trainwright.cli.guiding import Ordered, next_steps
from trainwright.core.errors import Preempted
from trainwright.core.signals import ENDING
from trainwright.core.stops import LeavesAtOnce
from trainwright.demos.common import DemoError, DemoOptions, DemoUsageError
from trainwright.version import __version__

FAILED, BAD_USAGE, INTERRUPTED = 1, 2, 130

#: Python looks for modules in the current folder first when it starts a worker (or `python -m` anything): a torch.py
#: beside a downloaded experiment would run. With this it does not.
ONLY_INSTALLED_MODULES = {"PYTHONSAFEPATH": "1"}

app = typer.Typer(
    name="trainwright",
    cls=Ordered,
    invoke_without_command=True,
    # Plain tracebacks: the pretty ones print local variables, secrets among them.
    pretty_exceptions_enable=False,
    help="One exact, fast training loop behind the front doors you already know.",
)


class Demo(StrEnum):
    """Which demo."""

    digits = "digits"
    lm = "lm"
    chat = "chat"


def main() -> None:
    """Entry point of the ``trainwright`` command."""
    if not _trusts_code(sys.argv[1:]):
        os.environ |= ONLY_INSTALLED_MODULES
    try:
        LeavesAtOnce(_say_stopped).do(app)
    finally:
        # How it ended is decided: a signal while Python tidies up must not turn that into a death by signal.
        if threading.current_thread() is threading.main_thread():
            for number in ENDING:
                signal.signal(number, signal.SIG_IGN)


def _trusts_code(words: list[str]) -> bool:
    """Return True when the command line lets code run that is no part of an installed package."""
    return words[:1] in (["launch"], ["run"], ["try"]) or any(
        word.partition("=")[0] in ("--trust", "--import") for word in words
    )


def _say_stopped(reason: str) -> None:
    # These keep nothing that another could go on from.
    keeps_nothing = ("try", "prove", "tail", "look", "lr-find", "runs", "show", "compare", "report")
    rest = "." if sys.argv[1:2] and sys.argv[1] in keeps_nothing else ": run the same command again to resume."
    typer.echo(f"Stopped by {reason}{rest}", err=True)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trainwright {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(next_steps(Path.cwd(), program()))


@app.command()
def demo(
    which: Annotated[
        Demo,
        typer.Argument(
            metavar="[digits|lm|chat]",
            help="digits: a small network. lm: a character language model. chat: one that learns to answer.",
        ),
    ] = Demo.digits,
    epochs: Annotated[int | None, typer.Option(min=1, help="Times to go through the data.")] = None,
    output: Annotated[Path | None, typer.Option(help="Run directory.", show_default="runs/demo-digits")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume from the last checkpoint in the run directory.")
    ] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of everything random.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples per step.")] = None,
    kill: Annotated[
        bool, typer.Option("--kill", help="Kill a training in the middle of a save, resume, compare the weights.")
    ] = False,
) -> None:
    """Train a small model, in well under a minute and with no download."""
    if kill:
        _run_kill_demo(output or Path("runs") / "demo-kill")
        return
    folder = output or Path("runs") / f"demo-{which.value}"
    command = resume_command(which, output)
    try:
        _run_demo(which, folder, epochs=epochs, batch_size=batch_size, seed=seed, resume=resume, command=command)
    except KeyboardInterrupt:
        _say_interrupted(folder, command)
        raise typer.Exit(INTERRUPTED) from None
    except Preempted:
        _say_interrupted(folder, command)
        raise


def _run_demo(
    which: Demo,
    folder: Path,
    *,
    epochs: int | None,
    batch_size: int | None,
    seed: int | None,
    resume: bool,
    command: str,
) -> None:
    options = DemoOptions(folder, epochs, batch_size, seed, resume, shlex.join(program()), command)
    try:
        if which is Demo.digits:
            from trainwright.demos.digits import run_digits

            run_digits(options)
        elif which is Demo.chat:
            from trainwright.demos.chat import run_chat

            run_chat(options)
        else:
            from trainwright.demos.charlm import run_lm

            run_lm(options)
    except DemoError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(BAD_USAGE if isinstance(error, DemoUsageError) else FAILED) from None


def _run_kill_demo(folder: Path) -> None:
    from trainwright.demos.kill import run_kill_demo

    try:
        same = run_kill_demo(folder)
    except DemoError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(FAILED) from None
    raise typer.Exit(0 if same else FAILED)


def _say_interrupted(folder: Path, command: str) -> None:
    found = list_checkpoints(folder)
    if found:
        typer.echo(f"Interrupted; {found[-1].name} is safe. Resume with: {command}", err=True)
    else:
        typer.echo("Interrupted before the first checkpoint.", err=True)


def resume_command(which: Demo, output: Path | None) -> str:
    """The command line that resumes a demo, as it can be typed here."""
    words = [*program(), "demo", which.value, "--resume"]
    if output is not None:
        words += ["--output", str(output)]
    return shlex.join(words)


def program() -> list[str]:
    """How this program was called, in the shortest form that works: it may not be on the PATH."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return [
            "python" if _is_same(shutil.which("python"), Path(sys.executable)) else sys.executable,
            "-m",
            "trainwright",
        ]
    if _is_same(shutil.which("trainwright"), called):
        return ["trainwright"]
    here = Path.cwd()
    return [str(called.relative_to(here) if called.is_absolute() and called.is_relative_to(here) else called)]


def _is_same(found: str | None, wanted: Path) -> bool:
    # Not resolved: the python of an environment links to one that lacks its packages.
    return found is not None and Path(found).absolute() == wanted.absolute()


@app.command()
def env() -> None:
    """Print what a run here would run on, as JSON: versions, hardware, git commit."""
    typer.echo(json.dumps(environment_facts(), indent=2))
