"""What ``trainwright train``, ``evaluate`` and ``predict`` do."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.checkpoint.directory import list_checkpoints, newest_good
from trainwright.checkpoint.durable import rename_to_first_free
from trainwright.checkpoint.run_lock import holding
from trainwright.config.backends import rank_from_environment
from trainwright.config.errors import ConfigError
from trainwright.config.loading import Loaded, load_experiment
from trainwright.config.origin import OURS, library_running
from trainwright.config.secrets import redacted_values
from trainwright.core.errors import MissingMetricError, NotSavedError
from trainwright.experiment.building import Built, build, build_trained, rows_of, run_folder, training_rows
from trainwright.experiment.sources import columns_of
from trainwright.experiment.stored import (
    EXPERIMENT,
    changed_files,
    differences,
    load_stored,
    refuse_masked,
    resolved,
    samples_of,
    store,
    stored_document,
    stored_facts,
    stored_samples,
)

logger = logging.getLogger("trainwright")
Say = Callable[[str], None]
#: Endings of what an evaluation says about its own speed.
SPEED = ("_runtime", "_per_second")
#: Sections that a run cannot go on with once they have changed: its weights and positions would mean something else.
_FIXED = ("model.", "data.")


@dataclass(frozen=True)
class Trained:
    """How a training ended."""

    folder: Path
    metrics: dict[str, float]
    steps: int
    #: Why it ended before its last step.
    stopped_early: str | None = None


def train(loaded: Loaded, *, fresh: bool = False, force: bool = False, say: Say = print) -> Trained:
    """Train, or go on where the last run of the same experiment stopped; ``force``: also where another one trains."""
    folder = run_folder(loaded)
    place = rank_from_environment()
    is_first = place.rank == 0
    if fresh and place.world_size > 1:
        # The others would not know whether they look before or after it.
        raise ConfigError("--fresh cannot be used with several processes: move the earlier run away first.")
    refuse_unwritable(folder)
    facts = None if fresh else _facts_to_go_on_with(loaded, folder, say if is_first else lambda text: None)
    built = build(loaded, facts=facts, **_defaults(loaded))
    if not is_first:
        return _train_built(built, folder, is_first=False, say=say)
    force = force or built.args.take_over
    if fresh and folder.exists():
        # Once everything is known to fit: a mistake leaves the earlier run where it is.
        with _held(folder, force, say):
            pass
        _set_aside(folder, say)
    # Before the experiment is stored there, until the model is.
    with _held(folder, force, say):
        return _train_built(built, folder, is_first=True, say=say)


@contextlib.contextmanager
def _held(folder: Path, force: bool, say: Say) -> Iterator[None]:
    """The folder, for this process alone; refused in words where another training has it."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(holding(folder, force=force, say=say))
        except ValueError as error:
            raise ConfigError(str(error)) from None
        yield


def _train_built(built: Built, folder: Path, *, is_first: bool, say: Say) -> Trained:
    loaded = built.loaded
    _refuse_other_samples(built, folder)
    for note in built.prepared.notes if is_first else []:
        say(f"{built.task}: {note}")
    if is_first:
        store(built, folder)
    try:
        output = built.trainer.train()
    except MissingMetricError as error:
        raise loaded.error(("training", "metric_for_best_model"), str(error)) from error
    except ValueError as error:
        if built.trainer.state.global_step > 0 or not is_refusal(error):
            raise
        raise ConfigError(f"{loaded.document.source}: {error}") from error
    except NotSavedError:
        # The folder may still take a model. If it does not, in whatever words, what is missing is said all the same.
        with contextlib.suppress(Exception):
            built.trainer.save_model()
        raise
    metrics = {**output.metrics, **_last_evaluation(built)}
    # Of weights in parts every process writes some.
    built.trainer.save_model()
    return Trained(folder, metrics, built.trainer.state.global_step, output.stopped_early)


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
            "choose another name, or start anew with --fresh (the earlier run is kept aside).",
        )


def _defaults(loaded: Loaded) -> dict[str, Any]:
    """Running the same command again goes on; the best model is the one that is kept."""
    said = {name for section in (loaded.experiment.training, loaded.experiment.checkpoint) for name in section}
    return {} if "resume" in said or "save_only_model" in said else {"resume": "auto"}


def _set_aside(folder: Path, say: Say) -> None:
    if not folder.exists():
        return
    kept = rename_to_first_free(folder, "-old-")
    say(f"The earlier run is now in {kept}.")


def _facts_to_go_on_with(loaded: Loaded, folder: Path, say: Say) -> dict[str, Any] | None:
    """Look at what is in the folder already: nothing, this experiment, or something else."""
    checkpoints = list_checkpoints(folder)
    document = stored_document(folder)
    if not checkpoints:
        return None
    if document is None:
        raise ConfigError(f"{folder} holds checkpoints of another run: choose another training.output_dir, or --fresh.")
    changed = differences(document.data, redacted_values(resolved(loaded)))
    fixed = [name for name, _, _ in changed if name.startswith(_FIXED)]
    if fixed:
        raise ConfigError(
            f"{folder} holds a run with another {', '.join(fixed)}: choose another name or training.output_dir, or "
            "start anew with --fresh (the earlier run is kept aside)."
        )
    for name, before, after in changed:
        say(f"Goes on with {name}: {after!r} (was {before!r}).")
    for name in changed_files(loaded, folder):
        say(f"{name} was changed since the run began: it goes on with what is there now.")
    return stored_facts(folder)


def _last_evaluation(built: Built) -> dict[str, float]:
    """The newest numbers of an evaluation, or of the one whose model is kept."""
    state = built.trainer.state
    step = state.best_global_step if built.args.load_best_model_at_end else None
    entries = [entry for entry in state.log_history if any(str(name).startswith("eval_") for name in entry)]
    chosen = [entry for entry in entries if step is None or entry.get("step") == step]
    return {name: value for name, value in (chosen or entries or [{}])[-1].items() if name.startswith("eval_")}


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
    found = built.trainer.evaluate(_encoded(built, rows), metric_key_prefix="eval")
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
    """Write one JSON object a row; returns the file and the number of rows."""
    built, folder = _open(target, checkpoint, overrides or [], trust)
    path = output or folder / "predictions.jsonl"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        # Now, and not when the work is done.
        raise ConfigError(f"command line: --output {path} cannot be written: {error.strerror}.") from None
    found = _new_data(built, data)
    wanted = built.prepared.target
    if wanted in columns_of(found) and hasattr(found, "remove_columns"):
        # Nothing is compared: labels that are missing or new do not matter.
        found = found.remove_columns(wanted)
    rows = built.prepared.describe(built.trainer.predict(_encoded(built, found)).predictions)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return path, len(rows)


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


def _encoded(built: Built, rows: object) -> Any:
    try:
        return built.prepared.encode(rows)
    except ValueError as error:
        raise ConfigError(str(error)) from error
