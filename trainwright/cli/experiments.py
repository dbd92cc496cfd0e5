"""Commands about experiments: train, resume, evaluate, predict, check, ls, cp."""

from __future__ import annotations

import errno
import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from trainwright.cli.app import BAD_USAGE, FAILED, INTERRUPTED, app, program
from trainwright.config.backends import rank_from_environment
from trainwright.config.errors import ConfigError
from trainwright.config.extras import missing_package
from trainwright.config.registry import import_file
from trainwright.config.secrets import masked_command
from trainwright.core.errors import NotSavedError, Preempted, RunTakenOver, lost_a_peer
from trainwright.experiment.library import descriptions, hand_over, missing, needs

#: Words that typer does not know are the experiment's: section.key=value, --section.key value.
OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}

ExperimentFile = Annotated[Path, typer.Argument(help="An experiment.yaml.", exists=True, dir_okay=False)]
Target = Annotated[Path, typer.Argument(help="The folder of a run, or the experiment.yaml it came from.", exists=True)]
Trust = Annotated[bool, typer.Option("--trust", help="Let code run that the experiment names (my_file.py:Class).")]
Force = Annotated[
    bool,
    typer.Option("--force", help="Train although another training writes into the folder: that one is ended unsaved."),
]
Import = Annotated[
    list[Path] | None,
    typer.Option("--import", help="Run this file first; it may register models, data, optimizers and more."),
]
Checkpoint = Annotated[
    str | None, typer.Option(help="last, checkpoint-N or a path.", show_default="the finished model")
]
Data = Annotated[str | None, typer.Option(help="Rows to use.", show_default="data.test or data.eval")]


@app.command(context_settings=OVERRIDES)
def train(
    context: typer.Context,
    experiment: ExperimentFile,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start anew in a new numbered folder; an earlier run stays as it is.")
    ] = False,
    force: Force = False,
    trust: Trust = False,
    imports: Import = None,
) -> None:
    """Train what an experiment describes; the same command again resumes it where it stopped.

    Anything in the file can be changed behind it: training.learning_rate=1e-4, or --training.learning_rate 1e-4. A run
    that has begun is resumed with what is changed; docs/changing-a-run.md says what that means for each setting.
    """
    folders: list[Path] = []
    with outcome(lambda: rerun_command(sys.argv[1:], folders[-1] if fresh and folders else None)):
        from trainwright.config.loading import load_experiment

        import_files(imports)
        loaded = load_experiment(experiment, context.args, trust=trust)
        _train(loaded, fresh=fresh, force=force, begins_in=folders.append)


@app.command(context_settings=OVERRIDES)
def resume(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The folder of a run.", exists=True, file_okay=False)],
    force: Force = False,
    trust: Trust = False,
    imports: Import = None,
) -> None:
    """Resume a run where it stopped, from its folder alone."""
    with outcome(lambda: rerun_command(sys.argv[1:])):
        from trainwright.experiment.stored import load_stored, refuse_masked

        import_files(imports)
        loaded = load_stored(run, context.args, trust=trust)
        refuse_masked(loaded)
        _train(loaded, fresh=False, force=force)


def _train(loaded: Any, *, fresh: bool, force: bool, begins_in: Callable[[Path], None] | None = None) -> None:
    from trainwright.experiment.running import SPEED
    from trainwright.experiment.running import train as train_experiment

    done = train_experiment(loaded, fresh=fresh, force=force, say=typer.echo, begins_in=begins_in)
    if rank_from_environment().rank != 0:
        return
    if done.stopped_early is not None:
        typer.echo(f"Training ended early, at step {done.steps}: {done.stopped_early}.")
    shown = {name: value for name, value in done.metrics.items() if name.startswith("eval_")}
    for name, value in shown.items():
        if not name.endswith(SPEED):
            typer.echo(f"  {name:<24}{value:.6g}")
    if done.was_a_try:
        typer.echo("Nothing was kept of this fast_dev_run. Train with the same command without it.")
        return
    folder = shlex.quote(str(done.folder))
    if done.report is not None:
        typer.echo(f"The report is {done.report}: open it in a browser.")
    typer.echo(f"The model is in {done.folder}. Try: {shlex.join(program())} evaluate {folder}")


@app.command(context_settings=OVERRIDES)
def evaluate(
    context: typer.Context,
    target: Target,
    checkpoint: Checkpoint = None,
    data: Data = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    trust: Trust = False,
    imports: Import = None,
) -> None:
    """Metrics of a trained model, printed and written to eval_results.json in its folder."""
    with outcome():
        from trainwright.experiment.running import evaluate as evaluate_run

        import_files(imports)
        metrics = evaluate_run(target, checkpoint=checkpoint, data=data, overrides=context.args, trust=trust)
        if as_json:
            typer.echo(json.dumps(metrics, indent=2))
        else:
            for name, value in metrics.items():
                typer.echo(f"  {name:<28}{value:.6g}")


@app.command(context_settings=OVERRIDES)
def predict(
    context: typer.Context,
    target: Target,
    data: Data = None,
    output: Annotated[
        Path | None,
        typer.Option(help=".jsonl, .csv or .parquet.", show_default="predictions.jsonl in the run's folder"),
    ] = None,
    checkpoint: Checkpoint = None,
    trust: Trust = False,
    imports: Import = None,
) -> None:
    """Predictions of a trained model, a row for each sample: its input, label, prediction and probabilities."""
    with outcome():
        from trainwright.experiment.running import predict as predict_run

        import_files(imports)
        path, rows = predict_run(
            target, checkpoint=checkpoint, data=data, output=output, overrides=context.args, trust=trust
        )
        if rank_from_environment().rank == 0:
            typer.echo(f"{rows} predictions in {path}")


@app.command(context_settings=OVERRIDES)
def check(
    context: typer.Context,
    experiment: ExperimentFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, as docs/run-commands.md describes it.")] = False,
    trust: Trust = False,
    imports: Import = None,
) -> None:
    """Try an experiment in seconds: one training step, one evaluation, one save, one load; nothing is kept."""
    with outcome():
        from trainwright.config.loading import load_experiment
        from trainwright.experiment.checking import check as check_experiment

        import_files(imports)
        report = check_experiment(load_experiment(experiment, context.args, trust=trust))
        allowed = [
            *(["--trust"] if trust else []),
            *(word for file in imports or [] for word in ("--import", str(file))),
        ]
        words = masked_command([*program(), "train", str(experiment), *context.args, *allowed])
        if as_json:
            found = [{"name": name, "text": text} for name, text in report.lines]
            typer.echo(json.dumps({"found": found, "train": words}, indent=2))
            return
        for name, text in report.lines:
            typer.echo(f"  {name:<18}{text}")
        typer.echo(f"Ready: {shlex.join(words)}")


@app.command("ls")
def list_examples(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, as docs/run-commands.md describes it.")] = False,
) -> None:
    """List the experiments that come with trainwright, and what each needs besides."""
    if as_json:
        found = [
            {"name": name, "what": text, "needs": needs(name), "install": missing(name)}
            for name, text in descriptions().items()
        ]
        typer.echo(json.dumps(found, indent=2))
        return
    for name, text in descriptions().items():
        typer.echo(f"  {name:<22}{text}")
        if packages := needs(name):
            state = f"not installed: {command}" if (command := missing(name)) else "installed"
            typer.echo(f"  {'':<22}needs {', '.join(packages)} ({state})")
    typer.echo(f"Copy one with: {shlex.join(program())} cp NAME")


@app.command("cp")
def copy_example(
    name: Annotated[str, typer.Argument(help="One of those that ls lists.")],
    target: Annotated[Path, typer.Argument(help="A folder, or the file to write.", show_default="here")] = Path(),
) -> None:
    """Copy an experiment, what it needs beside it, and the schema by which editors complete keys."""
    with outcome():
        for path in hand_over(name, target):
            typer.echo(f"Wrote {path}")


def import_files(files: list[Path] | None) -> None:
    for file in files or []:
        import_file(file, "--import")


def rerun_command(words: list[str], new_folder: Path | None = None) -> str:
    if new_folder is not None:
        # The same command would begin yet another run.
        return shlex.join([*program(), "resume", str(new_folder)])
    # One of several that launch started: alone it would be another run.
    launched = os.environ.get("TRAINWRIGHT_LAUNCHED_BY")
    # Whoever trains there by then is not meant.
    words = [word for word in words if word != "--force"]
    return launched or shlex.join(masked_command([*program(), *words]))


@contextmanager
def outcome(go_on: Callable[[], str] | None = None) -> Iterator[None]:
    """Turns what happened into an exit code: 2 for what the user can put right, 1 for failures, 130 for Ctrl-C."""
    try:
        yield
    except ConfigError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(BAD_USAGE) from None
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":
            typer.echo("Interrupted." + (f" Resume with: {go_on()}" if go_on else ""), err=True)
        raise typer.Exit(INTERRUPTED) from None
    except Preempted as stop:
        if os.environ.get("RANK", "0") == "0":
            # Of several processes all stop, and one speaks.
            typer.echo(f"{stop}" + (f" Resume with: {go_on()}" if go_on else ""), err=True)
        raise
    except Exception as error:
        if isinstance(error, ImportError) and (text := missing_package(error)):
            typer.echo(f"Error: {text}", err=True)
            raise typer.Exit(BAD_USAGE) from None
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            typer.echo(f"Error: this name is too long for a file: {str(error.filename)[:80]}...", err=True)
            raise typer.Exit(BAD_USAGE) from None
        if isinstance(error, RunTakenOver):
            typer.echo(f"Failed: {error}", err=True)
            raise typer.Exit(FAILED) from None
        if isinstance(error, NotSavedError):
            # A traceback has nothing that helps, and no script holds the model.
            typer.echo(f"Failed: {error.summary}", err=True)
            raise typer.Exit(FAILED) from None
        if not lost_a_peer(error):
            # Otherwise the traceback that matters is another process's.
            traceback.print_exc()
        typer.echo(f"Failed: {type(error).__name__}: {error}", err=True)
        raise typer.Exit(FAILED) from None
