"""What a task turns rows and a model's name into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn
from torch.utils.data import Dataset

from trainwright.config.arguments import TrainingArguments
from trainwright.config.loading import Loaded


@dataclass
class Given:
    """What a task works on."""

    loaded: Loaded
    #: Rows to learn from; None where a trained run is only evaluated, and its facts are known.
    train: Any
    #: What an earlier run found out about its data, so that this one reads new data alike.
    facts: dict[str, Any] | None = None
    #: The folder of a trained model, in place of the one that the experiment names.
    trained: str | None = None


@dataclass
class Prepared:
    """What the Trainer gets, and how predictions are read."""

    model: nn.Module
    #: New rows -> what the model takes.
    encode: Callable[[Any], Any]
    #: Predictions -> one dict a row, in words.
    describe: Callable[[Any], list[dict[str, Any]]]
    #: Those to learn from, where they are varied anew at each look; by default like all others.
    encode_train: Callable[[Any], Any] | None = None
    #: A Trainer of the task's own.
    trainer: type[Any] | None = None
    #: The rows of the experiment, encoded.
    train: Any = None
    eval: Any = None
    #: What was found out about the data; kept in the run directory.
    facts: dict[str, Any] = field(default_factory=dict)
    collator: Any = None
    metrics: Any = None
    preprocess_logits: Any = None
    processor: Any = None
    #: Rows and the arguments of the run -> a ``prediction`` for each, by a model that writes.
    answers: Callable[[Any, TrainingArguments], list[dict[str, Any]]] | None = None
    #: Lines for the person who started it.
    notes: list[str] = field(default_factory=list)
    #: The column that evaluation compares with, and prediction does without.
    target: str | None = None
    #: Columns of the data that are not used.
    dropped: list[str] = field(default_factory=list)


class TaskKit(Protocol):
    """One task: its defaults, and how it prepares data and model.

    It may say in ``reads`` which of the keys ``text``, ``target``, ``features``, ``max_length``, ``image_size``,
    ``augment`` and ``train_on`` of ``data:`` it reads; the user is told of those that were written and are not among
    them. With ``reads_files`` true, names of images and sounds in tables are made absolute for it.
    With ``reads_as_written`` true, words of CSV and JSON files come as they are in the file, not as numbers or dates.
    """

    def defaults(self, loaded: Loaded) -> dict[str, Any]:
        """TrainingArguments that suit it where the experiment says nothing."""
        ...

    def prepare(self, given: Given) -> Prepared: ...


class TensorRows(Dataset):
    """Rows cut from tensors of equal length, one for each name."""

    def __init__(self, **columns: Any) -> None:
        self.columns = {name: values for name, values in columns.items() if values is not None}

    @property
    def targets(self) -> Any:
        """The label of each row, where there are labels."""
        return self.columns.get("labels", ())

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: values[index] for name, values in self.columns.items()}


class MissingValues(ValueError):
    """Rows without a value where each needs one."""

    advice = "remove them, or fill them in."

    def __init__(self, column: str, text: str, is_wrong: Callable[[Any], bool]) -> None:
        super().__init__(f"{text}: {self.advice}")
        self.column, self.text, self.is_wrong = column, text, is_wrong


def is_missing(value: object) -> bool:
    """None, or not a number.

    >>> is_missing(None), is_missing(float("nan")), is_missing(0)
    (True, True, False)
    """
    return value is None or value != value


def classes_of(values: list[Any], column: str) -> list[str]:
    """The names of the classes that a column holds; ValueError where it cannot be learned."""
    missing = sum(map(is_missing, values))
    if missing:
        raise MissingValues(column, f"{missing} of {len(values)} rows have nothing in {column!r}", is_missing)
    if any(isinstance(value, (list, dict)) for value in values):
        raise ValueError(f"{column!r} holds lists or objects; a label is one word or number.")
    found = labels_of(values)
    if len(found) < 2:
        raise ValueError(f"All rows have the same {column!r} ({', '.join(found) or 'no rows'}): nothing to tell apart.")
    return found


def labels_of(values: list[Any]) -> list[str]:
    """The names of classes, in an order that does not depend on the rows' order."""
    kinds = {type(value) for value in values}
    return [str(value) for value in sorted(set(values), key=None if len(kinds) == 1 else str)]
