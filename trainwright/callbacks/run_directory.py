"""The run directory: ``config.yaml`` and its history, ``env.json``, ``metrics.jsonl``, ``trainer_state.json``."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from trainwright.callbacks.environment import environment_facts
from trainwright.config.arguments import TrainingArguments
from trainwright.config.run_directory import run_directory
from trainwright.config.secrets import redacted, redacted_values
from trainwright.core.callback import TrainerCallback
from trainwright.core.config_history import write_history
from trainwright.core.files import append_text, replace_text
from trainwright.core.state import TrainerControl, TrainerState

logger = logging.getLogger("trainwright")


class RunDirectoryCallback(TrainerCallback):
    """Writes what a run was told, what it ran on, and what it logged; one JSON object a line."""

    _leaves_model_alone = True

    listens_last = True

    def __init__(self) -> None:
        self._unwritten: list[str] = []
        self._was_refused = False
        self._is_over = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # Resumed at its end: what is there stays true.
        self._is_over = bool(kwargs.get("is_over"))
        if self._is_over:
            return
        folder = run_directory(args)
        folder.mkdir(parents=True, exist_ok=True)
        config = redacted_values(_plain(args.to_dict()))
        replace_text(folder / "config.yaml", yaml.safe_dump(config, sort_keys=False))
        facts = environment_facts(kwargs.get("model"), kwargs.get("train_dataloader"))
        replace_text(folder / "env.json", json.dumps(facts, indent=2) + "\n")
        write_history(folder, kwargs.get("history") or [])
        keep_logged(folder / "metrics.jsonl", state)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        folder = run_directory(args)
        if self._is_over or not folder.is_dir():
            return
        line = {"step": state.global_step, "time": round(time.time(), 3), **kwargs["logs"]}
        self._unwritten.append(json.dumps(redacted_values(_json_values(line)), default=_text) + "\n")
        with self._disk_may_refuse("metrics.jsonl"):
            append_text(folder / "metrics.jsonl", "".join(self._unwritten))
            self._unwritten.clear()

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


def keep_logged(metrics: Path, state: TrainerState) -> None:
    """Drop lines that ``state`` does not know: a new run starts its own curve, a resumed one its checkpoint's."""
    at_last_step = sum(entry.get("step") == state.global_step for entry in state.log_history)
    kept: list[str] = []
    for line in metrics.read_text(encoding="utf-8").splitlines() if metrics.is_file() and state.global_step else []:
        step = _step_of(line)
        if step == state.global_step:
            at_last_step -= 1
        if step < state.global_step or (step == state.global_step and at_last_step >= 0):
            kept.append(line)
    replace_text(metrics, "".join(f"{line}\n" for line in kept))


def _step_of(line: str) -> float:
    """The step a line belongs to; a line cut short when the run was killed belongs nowhere."""
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf


def _json_values(line: dict[str, Any]) -> dict[str, Any]:
    """NaN and infinity as strings: bare ``NaN`` is not JSON and breaks other readers."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in line.items()
    }


def _text(value: object) -> str:
    return redacted(str(value))


def _plain(value: object) -> Any:
    """Only what YAML's safe writer knows."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(item) for item in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    return str(getattr(value, "value", value))
