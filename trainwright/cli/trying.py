"""The command that shows on a user's own script what changing the import line would mean."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from trainwright.cli.app import BAD_USAGE, FAILED, INTERRUPTED, app
from trainwright.trying.running import workplace
from trainwright.trying.switch import imports_ours

_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


@app.command("try", context_settings=_SETTINGS)
def try_script(
    context: typer.Context,
    script: Annotated[
        Path, typer.Argument(help="A script that uses Hugging Face's Trainer; its own words follow.", metavar="SCRIPT")
    ],
    steps: Annotated[int, typer.Option(min=1, help="Steps to train.")] = 20,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that each of the runs may take.")] = 600,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the temporary folder with everything that was run.")
    ] = False,
) -> None:
    """Train a Hugging Face script a few steps with transformers and with trainwright, and compare."""
    _refuse_what_cannot_be_tried(script)
    facts = _run(script, context.args, steps, timeout, keep, quiet=as_json)
    if as_json:
        typer.echo(json.dumps(_valid(facts), indent=2))
    else:
        from rich.console import Console

        from trainwright.trying.table import show

        show(facts, Console())
    raise typer.Exit(0 if facts["agrees"] else FAILED)


def _run(script: Path, words: list[str], steps: int, timeout: float, keep: bool, *, quiet: bool) -> dict[str, Any]:
    from trainwright.trying.trial import Request, run_try

    def say(line: str) -> None:
        if not quiet:
            typer.echo(line, err=True)

    try:
        with workplace(keep=keep) as folder:
            facts = run_try(Request(script, words, steps, timeout), folder, say)
            if "failed" in facts:
                facts["failed"]["log"] = str(_kept(Path(facts["failed"]["log"]), script, keep))
            if keep:
                facts["folder"] = str(folder)
                say(f"Kept: {folder}")
    except KeyboardInterrupt:
        typer.echo("Interrupted: the runs were ended and their folder removed.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    return facts


def _kept(log: Path, script: Path, keep: bool) -> Path:
    """The log of a run that failed, where it stays."""
    if keep or not log.is_file():
        return log
    import tempfile

    with tempfile.NamedTemporaryFile(
        "wb", prefix=f"trainwright-try-{script.stem}-", suffix=".log", delete=False
    ) as copy:
        copy.write(log.read_bytes())
    return Path(copy.name)


def _refuse_what_cannot_be_tried(script: Path) -> None:
    problem = None
    if script.suffix != ".py" or not script.is_file():
        problem = f"{script} is no Python script: name the file that you start with `python`."
    elif imports_ours(script):
        problem = (
            f"{script} takes its Trainer from trainwright already: try compares scripts that import transformers'."
        )
    elif missing := [name for name in ("transformers", "accelerate") if find_spec(name) is None]:
        problem = (
            f"try runs transformers' own Trainer, which needs {' and '.join(missing)}: pip install {' '.join(missing)}"
        )
    if problem:
        typer.echo(f"Error: {problem}", err=True)
        raise typer.Exit(BAD_USAGE)


def _valid(value: Any) -> Any:
    """``value`` as JSON has it, which knows neither NaN nor infinity."""
    if isinstance(value, dict):
        return {str(name): _valid(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_valid(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
