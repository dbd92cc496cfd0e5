"""Where a run stands: the records that callbacks read and switch, with Hugging Face's names."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright.config.arguments import TrainingArguments
from trainwright.config.secrets import redacted_values
from trainwright.core.files import replacing
from trainwright.core.json_values import plain_values
from trainwright.core.speed import Speed


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
    log_history: MutableSequence[dict[str, Any]] = field(default_factory=list)
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
        #: The share of the time since the log before that training waited for data, 0 to 1. No part of the record: a
        #: clock's numbers are others in every run.
        self.data_wait: float | None = None
        #: How fast training went since the log before; like ``data_wait``, no part of the record.
        self.speed: Speed | None = None

    def to_json(self) -> str:
        """Return the record as text, without secrets."""
        return "".join(self._json_pieces())

    def save_to_json(self, json_path: str | Path) -> None:
        """Write the record to ``json_path``."""
        with replacing(Path(json_path)) as file:
            for piece in self._json_pieces():
                file.write(piece.encode("utf-8"))

    def _json_pieces(self) -> Iterator[str]:
        """Yield the text piece by piece: the log of a long run is never in memory as a whole."""
        names = [f.name for f in dataclasses.fields(self) if f.name != "log_history"]
        rest = _json_text({**{name: getattr(self, name) for name in names}, "log_history": []})
        # At the beginning of a line with this indent there is one such key: text in JSON holds no line ends.
        before, empty, after = rest.partition('\n  "log_history": []')
        assert empty
        yield before + '\n  "log_history": ['
        separator = "\n"
        for entries in _in_batches(self.log_history):
            # One a line: easier to read, and many times quicker than with indents.
            plain = redacted_values(plain_values(entries), certain=True)
            yield separator + ",\n".join(f"    {json.dumps(entry, sort_keys=True)}" for entry in plain)
            separator = ",\n"
        yield ("]" if separator == "\n" else "\n  ]") + after + "\n"

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


def _in_batches(entries: Iterable[Any], size: int = 1000) -> Iterator[list[Any]]:
    left = iter(entries)
    while batch := list(itertools.islice(left, size)):
        yield batch


def _json_text(value: Any) -> str:
    return json.dumps(redacted_values(plain_values(value), certain=True), indent=2, sort_keys=True)


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
