"""An experiment that is trained again: the same, with something changed, or something else altogether."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

from trainwright.config.effects import Effect, effect_of
from trainwright.config.errors import ConfigError
from trainwright.config.experiment import ARGUMENT_SECTIONS
from trainwright.config.loading import Loaded
from trainwright.config.secrets import redacted_values
from trainwright.config.stored_arguments import stored_arguments
from trainwright.core.callback import TrainerCallback
from trainwright.core.config_history import Change
from trainwright.core.finished import Finished, read_finished
from trainwright.core.state import ExportableState
from trainwright.experiment.building import Built, run_folder
from trainwright.experiment.stored import (
    EXPERIMENT,
    contents_to_evaluate_on,
    differences,
    files_of,
    has_same_contents,
    resolved,
    store,
    stored_document,
)
from trainwright.training.changes import differing_arguments

#: Arguments, which are compared by value, and a label.
_NO_SETTINGS = (*ARGUMENT_SECTIONS, "name")
#: How to train something else; ``resume`` has no --fresh.
ANEW = (
    "choose another name or training.output_dir, or train the experiment's file with --fresh (a new folder; this one "
    "stays as it is)"
)


def changed_settings(loaded: Loaded, folder: Path) -> list[Change]:
    """What the experiment's file says otherwise than the run in ``folder``; its arguments are compared by value."""
    document = stored_document(folder)
    before = {} if document is None else document.data
    found = differences(before, redacted_values(resolved(loaded)))
    changes = [
        Change(name, old, new, effect_of(name).value)
        for name, old, new in found
        if name.split(".")[0] not in _NO_SETTINGS
    ]
    moved = [one for one in changes if one.what == "data.train" or one.what.endswith(".data")]
    if moved and has_same_contents(loaded, folder, "train"):
        # The same data, which was moved.
        changes = [one._replace(effect=Effect.FREE.value) if one in moved else one for one in changes]
    return changes


def changed_arguments(args: Any, folder: Path) -> list[Change]:
    """Arguments that are not those of the run in ``folder``; nothing where it does not say."""
    config = stored_arguments(folder)
    return [] if config is None else differing_arguments(config, args.to_dict())


def settings_of(loaded: Loaded) -> dict[str, Any]:
    """Everything that the experiment says besides its arguments, by name; a checkpoint keeps it."""
    plain = redacted_values(resolved(loaded))
    found = differences({}, {name: value for name, value in plain.items() if name not in _NO_SETTINGS})
    return {name: json.loads(json.dumps(value, default=str)) for name, _, value in found}


def refuse_another_experiment(folder: Path, changes: list[Change]) -> None:
    """The steps so far belong to something else."""
    if found := [change.both_values for change in changes if change.effect == Effect.EXPERIMENT]:
        raise ConfigError(
            f"{folder} holds another experiment: {'; '.join(found)}. Set {'it' if len(found) == 1 else 'them'} back, "
            f"{ANEW}."
        )


def finished_before(folder: Path, args: Any, changes: list[Change]) -> Finished | None:
    """How the run ended, where it did and nothing is asked for that would lead it on; nothing is touched then."""
    end = read_finished(folder)
    if end is None or stored_arguments(folder) is None or not end.has_model or not list(folder.glob("*.safetensors")):
        return None
    course = [change for change in changes if change.effect == Effect.COURSE]
    if course and (end.reason is not None or _is_longer(course, end, args)):
        return None
    if course:
        listed = ", ".join(change.words for change in course)
        raise ConfigError(
            f"{folder} is {end.words}, and there is no step left for {listed} to act on: raise "
            f"training.num_train_epochs or training.max_steps too, {ANEW}."
        )
    return end


def _is_longer(course: list[Change], end: Finished, args: Any) -> bool:
    """Return True where the arguments give a finished run steps to take."""
    if args.max_steps > 0:
        return args.max_steps > end.step
    changed = {one.what: one for one in course}
    epochs = changed.get("num_train_epochs")
    # Without max_steps it is as long as its epochs, which it may never have been.
    return "max_steps" in changed or (epochs is not None and epochs.after > epochs.before)


def in_a_new_folder(loaded: Loaded) -> Loaded:
    """The experiment in a folder of its own: the first of runs/name, runs/name-2, runs/name-3 that is free."""
    wanted = run_folder(loaded)
    number, folder = 2, wanted
    while True:
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            folder, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
    said = loaded.experiment
    where = {"output_dir": str(folder)}
    if "output_dir" in said.checkpoint:
        changed = dataclasses.replace(said, checkpoint={**said.checkpoint, **where})
    else:
        changed = dataclasses.replace(said, training={**said.training, **where})
    return dataclasses.replace(loaded, experiment=changed)


class ExperimentRecord(TrainerCallback, ExportableState):
    """Writes ``experiment.yaml`` once it is sure that the training begins: what is refused changes nothing.

    Each checkpoint keeps what the experiment said besides its arguments, so that a change is noticed.
    """

    _leaves_model_alone = True
    #: After the record of the arguments, which takes longer to make: a kill between them leaves them apart.
    listens_last = True
    holds_settings_of_the_run = True

    def __init__(self, built: Built, folder: Path) -> None:
        self._built, self._folder = built, folder
        # Read once: the files may be large.
        self._files = files_of(built.loaded, folder)
        self._settings = {**settings_of(built.loaded), **contents_to_evaluate_on(built.loaded, self._files)}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.should_save and not kwargs.get("is_over"):
            store(self._built, self._folder, self._files)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.should_save and not (self._folder / EXPERIMENT).exists():
            # Somebody has moved or removed the folder; a disk that refuses does not end a training.
            with contextlib.suppress(OSError):
                store(self._built, self._folder, self._files)

    def state(self) -> dict[str, Any]:
        return {"args": dict(self._settings), "attributes": {}}
