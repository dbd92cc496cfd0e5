"""What ``trainwright train``, ``evaluate`` and ``predict`` do."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.checkpoint.directory import list_checkpoints, newest_good
from trainwright.checkpoint.run_lock import holding
from trainwright.config.backends import rank_from_environment
from trainwright.config.errors import ConfigError
from trainwright.config.loading import Loaded, load_experiment
from trainwright.config.origin import OURS, library_running
from trainwright.core.errors import MissingMetricError, NotSavedError
from trainwright.core.finished import mark_finished, read_finished
from trainwright.core.log_history import is_evaluation
from trainwright.core.results import TrainOutput
from trainwright.core.state import TrainerState
from trainwright.experiment.building import (
    Built,
    arguments_for,
    build,
    build_trained,
    rows_of,
    run_folder,
    training_rows,
)
from trainwright.experiment.ensembles import settle_ensemble
from trainwright.experiment.prediction_files import refuse_output, write_rows
from trainwright.experiment.predictions import computed_rows, encoded_rows, written_rows
from trainwright.experiment.rerun import (
    ANEW,
    ExperimentRecord,
    changed_arguments,
    changed_settings,
    finished_before,
    in_a_new_folder,
    refuse_another_experiment,
)
from trainwright.experiment.sources import columns_of
from trainwright.experiment.stored import (
    EXPERIMENT,
    changed_files,
    load_stored,
    refuse_masked,
    samples_of,
    stored_document,
    stored_facts,
    stored_samples,
)

logger = logging.getLogger("trainwright")
Say = Callable[[str], None]
#: Endings of what an evaluation says about its own speed.
SPEED = ("_runtime", "_per_second")


@dataclass(frozen=True)
class Trained:
    """How a training ended."""

    folder: Path
    metrics: dict[str, float]
    steps: int
    #: Why it ended before its last step.
    stopped_early: str | None = None
    #: A ``fast_dev_run``, of which nothing is there afterwards.
    was_a_try: bool = False
    #: The path of its report.html, if one was written.
    report: str | None = None


def train(
    loaded: Loaded,
    *,
    fresh: bool = False,
    force: bool = False,
    say: Say = print,
    begins_in: Callable[[Path], None] | None = None,
    ready: Callable[[Built], None] | None = None,
) -> Trained:
    """Train, or go on where the last run of the same experiment stopped.

    Args:
        fresh: In a new folder beside it.
        force: Also where another training writes.
        begins_in: Is told the folder.
        ready: Is given what will be trained, before the first step; not called where nothing is left to do.
    """
    place = rank_from_environment()
    is_first = place.rank == 0
    if arguments_for(loaded)[1].fast_dev_run:
        return _try(loaded, say if is_first else lambda text: None)
    if fresh and place.world_size > 1:
        # Each would choose a folder of its own.
        raise ConfigError("--fresh cannot be used with several processes: name a new folder, training.output_dir=...")
    refuse_unwritable(run_folder(loaded))
    if fresh:
        loaded = in_a_new_folder(loaded)
        say(f"A new run in {run_folder(loaded)}.")
    folder = run_folder(loaded)
    if begins_in is not None:
        begins_in(folder)
    try:
        built = _ready(loaded, folder, say if is_first else lambda text: None)
    except BaseException:
        if fresh:
            # Nothing was begun in it.
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    if isinstance(built, Trained):
        return built
    if ready is not None:
        ready(built)
    for note in built.prepared.notes if is_first else []:
        say(f"{built.task}: {note}")
    was_over = read_finished(folder) is not None
    # Until the model is there too.
    with _held(folder, force or built.args.take_over, say) if is_first else contextlib.nullcontext():
        if place.world_size == 1 and not was_over and read_finished(folder) is not None:
            # By another training, while this one waited for it.
            end = _end_before(loaded, folder, say)
            return _trained(built, folder) if end is None else end
        return _trained(built, folder)


def _try(loaded: Loaded, say: Say) -> Trained:
    """A few batches of what the experiment describes; its folder is not touched."""
    built = build(loaded)
    for note in built.prepared.notes:
        say(f"{built.task}: {note}")
    output = _run(built)
    folder = Path(str(built.trainer.args.output_dir))
    return Trained(
        folder, {**output.metrics, **_last_evaluation(built)}, built.trainer.state.global_step, was_a_try=True
    )


@contextlib.contextmanager
def _held(folder: Path, force: bool, say: Say) -> Iterator[None]:
    """The folder, for this process alone; refused in words where another training has it."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(holding(folder, force=force, say=say))
        except ValueError as error:
            raise ConfigError(str(error)) from None
        yield


def _ready(loaded: Loaded, folder: Path, say: Say) -> Built | Trained:
    """What will be trained; or how it ended, where the same run has come to its end before."""
    facts = None
    if list_checkpoints(folder):
        if (end := _end_before(loaded, folder, say)) is not None:
            return end
        facts = stored_facts(folder)
    built = build(loaded, facts=facts, **_defaults(loaded))
    _refuse_other_samples(built, folder)
    built.trainer.add_callback(ExperimentRecord(built, folder))
    return built


def _end_before(loaded: Loaded, folder: Path, say: Say) -> Trained | None:
    """How the run there has ended, where nothing is left to do; another experiment is refused."""
    if stored_document(folder) is None:
        raise ConfigError(f"{folder} holds checkpoints of another run, and no {EXPERIMENT}: {ANEW}.")
    arguments = arguments_for(loaded, **_defaults(loaded))[1]
    changes = [*changed_settings(loaded, folder), *changed_arguments(arguments, folder)]
    refuse_another_experiment(folder, changes)
    _note_changed_files(loaded, folder, say)
    end = finished_before(folder, arguments, changes)
    if end is None:
        return None
    say(f"{folder} is {end.words}: there is nothing left to do, and nothing was touched.")
    return Trained(folder, _stored_evaluation(folder), end.step)


def _trained(built: Built, folder: Path) -> Trained:
    try:
        output = _run(built)
    except NotSavedError:
        # The folder may still take a model. If it does not, in whatever words, what is missing is said all the same.
        with contextlib.suppress(Exception):
            built.trainer.save_model()
        raise
    metrics = {**output.metrics, **_last_evaluation(built)}
    end = read_finished(folder)
    if end is None or not end.has_model:
        settle_ensemble(built.loaded, built.trainer, folder)
        # Of weights in parts every process writes some.
        built.trainer.save_model()
        if end is not None and built.args.should_save:
            mark_finished(folder, end._replace(has_model=True))
    steps = built.trainer.state.global_step
    return Trained(folder, metrics, steps, output.stopped_early, report=output.report)


def _run(built: Built) -> TrainOutput:
    loaded = built.loaded
    try:
        return built.trainer.train()
    except MissingMetricError as error:
        raise loaded.error(("training", "metric_for_best_model"), str(error)) from error
    except ValueError as error:
        if built.trainer.state.global_step > 0 or not is_refusal(error):
            raise
        raise ConfigError(f"{loaded.document.source}: {error}") from error


def refuse_unwritable(folder: Path) -> None:
    """Before the data is read: results need a place."""
    folder = folder.absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise ConfigError(f"{folder}: results cannot be written there; set training.output_dir.")


def is_refusal(error: ValueError) -> bool:
    """Whether trainwright itself refused something: its ValueErrors speak to users, and others' are failures."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and library_running(trace.tb_frame) == OURS


def _refuse_other_samples(built: Built, folder: Path) -> None:
    """The position in the data means nothing in other data."""
    before, now = stored_samples(folder), samples_of(built)
    if list_checkpoints(folder) and before is not None and before != now:
        raise built.loaded.error(
            ("data", "train"),
            f"it gives {now} samples, and gave {before} when the run in {folder} began: go on with the same data, "
            f"{ANEW}.",
        )


def _defaults(loaded: Loaded) -> dict[str, Any]:
    """Running the same command again goes on; the best model is the one that is kept."""
    said = {name for section in (loaded.experiment.training, loaded.experiment.checkpoint) for name in section}
    return {} if "resume" in said or "save_only_model" in said else {"resume": "auto"}


def _note_changed_files(loaded: Loaded, folder: Path, say: Say) -> None:
    """Refuse files to train on, or of a model under an adapter, that have other contents; others are free to change."""
    for change in changed_files(loaded, folder):
        if change.part in ("train", "model"):
            same = "data" if change.part == "train" else "model"
            raise ConfigError(
                f"{change.name} is not what it was when the run in {folder} began ({change.before} then, {change.now} "
                f"now): go on with the same {same}, {ANEW}."
            )
        say(f"{change.name} was changed since the run began: it is judged by what is there now.")


def _stored_evaluation(folder: Path) -> dict[str, float]:
    """The newest numbers of an evaluation that a finished run has written."""
    try:
        state = TrainerState.load_from_json(folder / "trainer_state.json")
    except (OSError, ValueError, TypeError):
        return {}
    return _evaluation_in(state, state.best_global_step)


def _last_evaluation(built: Built) -> dict[str, float]:
    """The newest numbers of an evaluation, or of the one whose model is kept."""
    state = built.trainer.state
    return _evaluation_in(state, state.best_global_step if built.args.load_best_model_at_end else None)


def _evaluation_in(state: TrainerState, step: int | None) -> dict[str, float]:
    newest: dict[str, float] | None = None
    for entry in filter(is_evaluation, reversed(state.log_history)):
        newest = newest or entry
        if step is None or entry.get("step") == step:
            newest = entry
            break
    return {name: value for name, value in (newest or {}).items() if name.startswith("eval_")}


# ---- with a trained model


def find_run(target: Path, overrides: list[str], *, trust: bool) -> tuple[Loaded, Path]:
    """The experiment and folder that ``target`` stands for: a run's folder, or an experiment's file."""
    if target.is_dir():
        loaded = load_stored(target, overrides, trust=trust)
        refuse_masked(loaded, "model", "data")
        return loaded, target
    loaded = load_experiment(target, overrides, trust=trust)
    folder = run_folder(loaded)
    if stored_document(folder) is None:
        raise ConfigError(f"{folder} has no {EXPERIMENT}: train it first, or name the folder of a run.")
    return loaded, folder


def weights_of(folder: Path, wanted: str | None) -> Path:
    """The folder of the weights: the final model, ``last`` checkpoint, or a checkpoint by name or path."""
    if wanted is None:
        if any(folder.glob("*.safetensors")):
            return folder
        wanted = "last"
    if wanted == "last":
        found = newest_good(folder)
        if found is None:
            raise ConfigError(f"{folder} holds no good checkpoint and no finished model.")
        return found
    for path in (folder / wanted, Path(wanted)):
        if path.is_dir():
            return path
    raise ConfigError(f"There is no checkpoint {wanted!r} in {folder}; there are {_names(folder)}.")


def _names(folder: Path) -> str:
    return ", ".join(path.name for path in list_checkpoints(folder)) or "none"


def _open(target: Path, checkpoint: str | None, overrides: list[str], trust: bool) -> tuple[Built, Path]:
    loaded, folder = find_run(target, overrides, trust=trust)
    return build_trained(loaded, weights_of(folder, checkpoint), stored_facts(folder)), folder


def evaluate(
    target: Path,
    *,
    checkpoint: str | None = None,
    data: str | None = None,
    overrides: list[str] | None = None,
    trust: bool = False,
) -> dict[str, float]:
    """Metrics of a trained model; also written to ``eval_results.json`` in its folder."""
    built, _ = _open(target, checkpoint, overrides or [], trust)
    rows = _new_data(built, data)
    wanted = built.prepared.target
    if wanted is not None and wanted not in columns_of(rows):
        raise ConfigError(f"The data has no column {wanted!r} to compare with; predict does without one.")
    found = built.trainer.evaluate(encoded_rows(built, rows), metric_key_prefix="eval")
    metrics = {name: value for name, value in found.items() if name != "epoch"}
    try:
        built.trainer.save_metrics("eval", metrics, combined=False)
    except OSError as error:
        logger.warning("eval_results.json was not written: %s.", error.strerror or error)
    return metrics


def predict(
    target: Path,
    *,
    checkpoint: str | None = None,
    data: str | None = None,
    output: Path | None = None,
    overrides: list[str] | None = None,
    trust: bool = False,
) -> tuple[Path, int]:
    """Write a row for each sample, in the order of the data; returns the file and the number of rows.

    The ending of ``output`` says how: ``.csv``, ``.parquet``, or lines of JSON.
    """
    if output is not None:
        refuse_output(output)
    built, folder = _open(target, checkpoint, overrides or [], trust)
    path = output or folder / "predictions.jsonl"
    rows = _new_data(built, data)
    predicted = written_rows(built, rows) if built.prepared.answers is not None else computed_rows(built, rows)
    if rank_from_environment().rank == 0:
        write_rows(path, predicted, is_ours=output is None)
    return path, len(predicted)


def _new_data(built: Built, name: str | None) -> Any:
    """The rows named on the command line, else those for testing, else those that training was judged by."""
    loaded, given = built.loaded, built.loaded.experiment.data
    if name is not None:
        return rows_of(loaded, "test", name=name)
    if given.test is not None:
        return rows_of(loaded, "test")
    evaluation = training_rows(loaded, built.args)[1]
    if evaluation is None:
        raise ConfigError(
            "There is no data to evaluate on: add --data FILE, or data.test or data.eval to the experiment."
        )
    return evaluation
