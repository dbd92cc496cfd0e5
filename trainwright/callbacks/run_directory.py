"""The run directory: ``config.yaml`` and its history, ``env.json``, ``metrics.jsonl``, ``trainer_state.json``."""

from __future__ import annotations

import itertools
import json
import logging
import math
import time
from collections.abc import Iterator, MutableSequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from trainwright.callbacks.environment import environment_facts
from trainwright.config.arguments import TrainingArguments
from trainwright.config.run_directory import run_directory
from trainwright.config.secrets import redacted_values
from trainwright.core.callback import TrainerCallback
from trainwright.core.config_history import FILE as HISTORY
from trainwright.core.config_history import history_text, write_history
from trainwright.core.files import replace_text
from trainwright.core.json_values import plain_values
from trainwright.core.log_history import METRICS, Entry, Evaluations, LogFiles
from trainwright.core.log_record import LogMark, LogRecord
from trainwright.core.state import TrainerControl, TrainerState

logger = logging.getLogger("trainwright")


class ResumedLog(NamedTuple):
    """The log of a checkpoint: as a list, and where its files are."""

    history: MutableSequence[Entry]
    evaluations: Evaluations
    mark: LogMark
    #: None where they are not what was marked.
    files: LogFiles | None


class RunDirectoryCallback(TrainerCallback):
    """Writes what a run was told, what it ran on, and what it logged; one JSON object a line."""

    _is_internal = True

    _leaves_model_alone = True

    listens_last = True

    def __init__(self) -> None:
        self._was_refused = False
        self._is_over = False
        #: What the files say that no step changes.
        self._record: dict[str, str] = {}
        #: What is known of the log on disk, once a training has begun or something was logged.
        self.record: LogRecord | None = None
        #: The log that the next training goes on with.
        self.resumed: ResumedLog | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # Resumed at its end: what is there stays true.
        self._is_over = bool(kwargs.get("is_over"))
        if self._is_over:
            return
        folder = run_directory(args)
        config = redacted_values(_plain(args.to_dict()))
        facts = environment_facts(kwargs.get("model"), kwargs.get("train_dataloader"))
        self._record = {
            "config.yaml": yaml.safe_dump(config, sort_keys=False),
            "env.json": json.dumps(facts, indent=2) + "\n",
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in self._record.items():
                replace_text(folder / name, text)
        except OSError as error:
            raise ValueError(
                f"{folder} cannot be written ({error.strerror}): make room or choose another output_dir."
            ) from error
        history = kwargs.get("history") or []
        write_history(folder, history)
        if history:
            self._record[HISTORY] = history_text(history)
        self.begin_log(folder, state)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # Somebody may have moved or removed the folder: what is written there from now on needs its record too.
        folder = run_directory(args)
        for name, text in self._record.items():
            if folder.is_dir() and not (folder / name).exists():
                with self._disk_may_refuse(name):
                    replace_text(folder / name, text)

    def begin_log(self, folder: Path, state: TrainerState) -> None:
        """Drop lines that ``state`` does not know: a new run starts its own curve, a resumed one its checkpoint's."""
        resumed, self.resumed = self.resumed, None
        self.record = LogRecord(LogFiles(folder))
        history = state.log_history
        evaluations = Evaluations()
        if resumed is not None and resumed.history is history:
            evaluations = resumed.evaluations
            if resumed.files and self.record.resume(resumed.mark, resumed.files, history, evaluations):
                return
        else:
            evaluations.see(0, history, state.best_global_step)
        lines = _kept_lines(folder / METRICS, state) if state.global_step else []
        self.record.start(lines or [_text_of(_line_for(entry)) for entry in history], history, evaluations)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        folder = run_directory(args)
        if self._is_over or not folder.is_dir():
            return
        line = _line_for({"step": state.global_step, "time": round(time.time(), 3), **kwargs["logs"]})
        if self.record is None or self.record.files.folder != folder:
            # No training has begun here: whatever is in the file, this line comes after it.
            self.record = LogRecord(LogFiles(folder), follows=False)
        with self._disk_may_refuse(METRICS):
            self.record.add(line, state)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        if self._is_over:
            self._is_over = False
            return
        with self._disk_may_refuse("trainer_state.json"):
            state.save_to_json(run_directory(args) / "trainer_state.json")

    @contextmanager
    def _disk_may_refuse(self, name: str) -> Iterator[None]:
        """A full disk does not end a training; lines that could not be written wait for the next attempt."""
        try:
            yield
        except OSError as error:
            if not self._was_refused:
                logger.warning("%s could not be written (%s); training goes on.", name, error.strerror)
            self._was_refused = True


def _kept_lines(metrics: Path, state: TrainerState) -> list[str]:
    """Return the lines up to the step of ``state``, and as many of that step as its log has."""
    if not metrics.is_file():
        return []
    newest = itertools.takewhile(lambda entry: entry.get("step") == state.global_step, reversed(state.log_history))
    at_last_step = sum(1 for _ in newest)
    kept: list[str] = []
    for line in metrics.read_text(encoding="utf-8", errors="replace").splitlines():
        step = _step_of(line)
        if step == state.global_step:
            at_last_step -= 1
        if step < state.global_step or (step == state.global_step and at_last_step >= 0):
            kept.append(f"{line}\n")
    return kept


def _step_of(line: str) -> float:
    """The step a line belongs to; a line cut short when the run was killed belongs nowhere."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.inf
    return step if isinstance(step, (int, float)) else math.inf


def _line_for(entry: dict[str, Any]) -> dict[str, Any]:
    return redacted_values(plain_values(entry, nonfinite_as_text=True))


def _text_of(line: dict[str, Any]) -> str:
    return json.dumps(line) + "\n"


def _plain(value: object) -> Any:
    """Only what YAML's safe writer knows."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(item) for item in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    return str(getattr(value, "value", value))
