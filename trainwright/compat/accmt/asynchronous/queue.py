"""The folder through which weights go from the training to the evaluation, and results come back.

::

    async_queue-<model>/
      run.json                       there while a training runs: what evaluations have to know of it; then it is
                                     finished.json or, where it ended before its time, failed.json
      waiting/000000012/             weights.safetensors and entry.json of step 12, whole as soon as it has this name
      results/000000012.json         what the evaluation of step 12 found; kept, since a resumed run may need it

Everything is written under another name and renamed. Nothing but tensors and JSON is read.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import load_file, save_file
from torch import Tensor

from trainwright.core.files import replace_text
from trainwright.core.fsync import force_folder

#: Evaluations that wait at most; then the training waits too, so that the disk does not fill up.
MOST_WAITING = 4
_WEIGHTS, _ENTRY = "weights.safetensors", "entry.json"
_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "dict[str, Any]": (dict,),
    "list[float]": (list,),
    "list[dict[str, float]]": (list,),
}


@dataclass(frozen=True, kw_only=True)
class RunNotes:
    """What evaluations have to know of a training before the first of them."""

    id: str
    #: The launch that it belongs to: a killed one leaves its notes behind.
    launch: str
    seed: int
    #: What was the best so far, and the status; as the last evaluation left them.
    carried: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An evaluation that is to be done: where the training stood."""

    step: int
    epoch: float
    max_steps: int
    num_train_epochs: int
    #: Of ``status_dict``, what the training says.
    status: dict[str, Any]
    is_epoch_end: bool
    is_last_step: bool
    #: The sum of all training losses so far, and how many there are.
    losses: list[float]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What an evaluation found."""

    step: int
    epoch: float
    #: What it logged, one after the other.
    logs: list[dict[str, float]]
    #: What was the best, and the status, after it.
    carried: dict[str, Any]


Record = TypeVar("Record", RunNotes, Entry, Result)


class EvaluationQueue:
    """Evaluations of one model, in the order of their steps."""

    def __init__(self, folder: Path) -> None:
        # Absolute: somebody's code may change the working directory.
        self.folder = folder.absolute()
        self._waiting, self._results = self.folder / "waiting", self.folder / "results"
        self._run, self._failed = self.folder / "run.json", self.folder / "failed.json"
        self._finished = self.folder / "finished.json"

    # ---- the training

    def begin(self, step: int) -> None:
        """Make the folder ready for a training that begins, or goes on, at ``step``.

        What lies after it belongs to a course that was given up; the training comes by there again.
        """
        for notes in (self._run, self._failed, self._finished):
            notes.unlink(missing_ok=True)
        for folder in (self._waiting, self._results):
            folder.mkdir(parents=True, exist_ok=True)
            for found in folder.iterdir():
                number = _number(found)
                if step == 0 or number is None or number > step:
                    _remove(found)
        for number in self.waiting():
            if self._result_file(number).exists():
                self.remove(number)

    def open(self, notes: RunNotes) -> None:
        """Let evaluations begin."""
        replace_text(self._run, _text(notes))

    def add(self, entry: Entry, weights: Mapping[str, Tensor]) -> None:
        """Put an evaluation at the end."""
        target = self._waiting / _name(entry.step)
        draft = self._waiting / f"draft-{target.name}"
        _remove(draft)
        draft.mkdir(parents=True)
        save_file(dict(weights), draft / _WEIGHTS)
        (draft / _ENTRY).write_text(_text(entry), encoding="utf-8")
        force_folder(draft)
        os.rename(draft, target)

    def fail(self) -> None:
        """The training has ended before its time; what waits may still be done."""
        with suppress(FileNotFoundError):
            os.replace(self._run, self._failed)

    def close(self, *, keeps_results: bool) -> None:
        """All is done; results are kept for a training that goes on later."""
        if not keeps_results:
            _remove(self.folder)
            return
        with suppress(FileNotFoundError):
            os.replace(self._run, self._finished)
        _remove(self._waiting)

    # ---- the evaluation

    def notes(self) -> RunNotes | None:
        """What is said of the training that runs; None where none does."""
        with suppress(FileNotFoundError):
            return _read(self._run, RunNotes)
        return None

    def notes_of_launch(self, launch: str) -> RunNotes | None:
        """What is said of a training of this launch, also where it is over already."""
        for file in (self._run, self._finished, self._failed):
            with suppress(FileNotFoundError):
                notes = _read(file, RunNotes)
                if notes.launch == launch:
                    return notes
        return None

    def has_failed(self, run: str) -> bool:
        """Whether the training with this id has ended before its time."""
        with suppress(FileNotFoundError):
            return _read(self._failed, RunNotes).id == run
        return False

    def take(self, step: int) -> tuple[Entry, dict[str, Tensor]]:
        """Where the training stood at ``step``, and its weights."""
        folder = self._waiting / _name(step)
        return _read(folder / _ENTRY, Entry), load_file(folder / _WEIGHTS)

    def done(self, result: Result) -> None:
        """Keep what was found; the weights are not needed any more."""
        replace_text(self._result_file(result.step), _text(result))
        self.remove(result.step)

    def remove(self, step: int) -> None:
        _remove(self._waiting / _name(step))

    # ---- both

    def waiting(self) -> list[int]:
        """Steps whose evaluation is still to be done."""
        return _numbers(self._waiting)

    def refuse_if_some_wait(self) -> None:
        """Where nobody would do them."""
        if waiting := self.waiting():
            raise ValueError(
                f"{len(waiting)} evaluations of this training wait in {self.folder}: go on with alaunch, which does "
                "them, or remove the folder."
            )

    def steps_with_results(self) -> list[int]:
        return _numbers(self._results)

    def result(self, step: int) -> Result:
        return _read(self._result_file(step), Result)

    def knows(self, step: int) -> bool:
        """Whether the evaluation of ``step`` is done, or waits."""
        return self._result_file(step).exists() or (self._waiting / _name(step)).exists()

    def _result_file(self, step: int) -> Path:
        return self._results / f"{_name(step)}.json"


def queue_folder(model_folder: Path) -> Path:
    """Beside the model: its own folder is replaced as a whole by every better one."""
    whole = model_folder.absolute()
    return whole.parent / f"async_queue-{whole.name}"


def _name(step: int) -> str:
    return f"{step:09d}"


def _number(path: Path) -> int | None:
    return int(path.stem) if path.stem.isdecimal() else None


def _numbers(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(number for path in folder.iterdir() if (number := _number(path)) is not None)


def _remove(path: Path) -> None:
    if path.is_dir():
        # Its name goes first: a folder that is half gone is not one that waits.
        doomed = path.with_name(f"gone-{path.name}")
        shutil.rmtree(doomed, ignore_errors=True)
        with suppress(FileNotFoundError):
            os.rename(path, doomed)
        shutil.rmtree(doomed, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _text(record: RunNotes | Entry | Result) -> str:
    return json.dumps(dataclasses.asdict(record), indent=1) + "\n"


def _read(path: Path, kind: type[Record]) -> Record:
    """A record from JSON, with the fields that it must have and no others."""
    found = json.loads(path.read_text(encoding="utf-8"))
    fields = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    if not isinstance(found, dict) or set(found) != set(fields):
        raise ValueError(f"{path} is not what trainwright writes: it must have {', '.join(fields)}.")
    for name, wanted in fields.items():
        kinds = _KINDS[wanted]
        is_right = isinstance(found[name], kinds) and isinstance(found[name], bool) == (kinds == (bool,))
        if not is_right:
            raise ValueError(f"{path}: {name} must be of the kind {wanted}, not {found[name]!r}.")
    if kind is Result and not all(isinstance(log, dict) for log in found["logs"]):
        raise ValueError(f"{path}: logs must be a list of dicts.")
    return kind(**found)
