"""Where a run stands: the records that callbacks read and switch, with Hugging Face's names."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright.config.arguments import TrainingArguments
from trainwright.config.secrets import redacted_values
from trainwright.core.files import replace_text


class ExportableState:
    """Something whose state is saved in a checkpoint as plain JSON.

    ``state()`` returns ``{"args": {...}, "attributes": {...}}``: what the constructor takes, and what to set then.
    """

    def state(self) -> dict[str, Any]:
        raise NotImplementedError(f"{type(self).__name__} must define state() to be saved in a checkpoint.")

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> ExportableState:
        """Build an equal object from what ``state()`` returned."""
        instance = cls(**state["args"])
        instance.__dict__.update(state["attributes"])
        return instance


@dataclass
class TrainerControl(ExportableState):
    """Switches that callbacks set and the loop obeys.

    >>> control = TrainerControl()
    >>> control.should_save = True   # the loop saves after the current event and switches it off again
    """

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False

    def new_training(self) -> None:
        self.should_training_stop = False

    def new_epoch(self) -> None:
        self.should_epoch_stop = False

    def new_step(self) -> None:
        self.should_save = self.should_evaluate = self.should_log = False

    def state(self) -> dict[str, Any]:
        return {"args": dataclasses.asdict(self), "attributes": {}}


@dataclass
class TrainerState:
    """Progress of a run; ``trainer_state.json`` is this record as JSON."""

    epoch: float = 0
    global_step: int = 0
    max_steps: int = 0
    logging_steps: int = 500
    eval_steps: int = 500
    save_steps: int = 500
    train_batch_size: int | None = None
    num_train_epochs: int = 0
    num_input_tokens_seen: int = 0
    total_flos: float = 0
    log_history: list[dict[str, Any]] = field(default_factory=list)
    best_metric: float | None = None
    best_global_step: int | None = None
    best_model_checkpoint: str | None = None
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True
    is_hyper_param_search: bool = False
    trial_name: str | None = None
    trial_params: dict[str, Any] | None = None
    stateful_callbacks: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # HF's callers may pass None, or a list of callbacks, where the record holds a dict.
        if self.log_history is None:
            self.log_history = []
        if not isinstance(self.stateful_callbacks, dict):
            self.stateful_callbacks = callback_states(self.stateful_callbacks or [])

    def to_json(self) -> str:
        """The record as text, without secrets."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return json.dumps(redacted_values(fields, certain=True), indent=2, sort_keys=True, default=float) + "\n"

    def save_to_json(self, json_path: str | Path) -> None:
        """Write the record to ``json_path``."""
        replace_text(Path(json_path), self.to_json())

    @classmethod
    def load_from_json(cls, json_path: str | Path) -> TrainerState:
        """Read a record; fields of other versions that this one does not know are left out."""
        stored = json.loads(Path(json_path).read_text(encoding="utf-8"))
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in stored.items() if name in known})

    def compute_steps(self, args: TrainingArguments, max_steps: int) -> None:
        """Resolve ``logging/eval/save_steps`` below 1 into a share of ``max_steps``."""
        for kind in ("logging", "eval", "save"):
            steps = getattr(args, f"{kind}_steps")
            if steps is not None:
                setattr(self, f"{kind}_steps", math.ceil(max_steps * steps) if steps < 1 else int(steps))


def callback_states(callbacks: list[Any], read: Callable[[Any], dict[str, Any]] | None = None) -> dict[str, Any]:
    """State of every callback that has one, by class name; a list where a class occurs more than once.

    ``read`` asks a callback for its state; by default by its ``state()``.
    """
    states: dict[str, Any] = {}
    for callback in callbacks:
        if not callable(getattr(callback, "state", None)):
            continue
        name, state = type(callback).__name__, callback.state() if read is None else read(callback)
        if name not in states:
            states[name] = state
        elif isinstance(states[name], list):
            states[name].append(state)
        else:
            states[name] = [states[name], state]
    return states
