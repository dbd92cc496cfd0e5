"""Predictions as rows that people can use: what was predicted, from what, and what it should have been."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from trainwright.config.errors import ConfigError
from trainwright.experiment.building import Built
from trainwright.experiment.sources import columns_of
from trainwright.experiment.tasks.base import Prepared

#: Lists of a row that are longer than that are left out: the index says which row it is.
_MOST_VALUES = 64


def prediction_rows(prepared: Prepared, rows: Any, encoded: Any, predictions: Any) -> list[dict[str, Any]]:
    """One dict for each prediction: ``index``, ``input``, ``label`` where it is known, and what was predicted.

    ``rows`` are as they were read, with the column of the target if there is one. Where a sample is no row (blocks of a
    text, say), there is no input.
    """
    described = prepared.describe(predictions)
    found = [{"index": index, **one} for index, one in enumerate(described)]
    if not _is_row_for_row(rows, encoded) or len(rows) < len(described):
        return [plain(one) for one in found]
    inputs = _inputs(rows, prepared, len(found))
    labels = _labels(rows, prepared, len(found))
    for number, one in enumerate(found):
        before: dict[str, Any] = {"index": number}
        if inputs is not None:
            before["input"] = inputs[number]
        if labels is not None:
            before["label"] = labels[number]
        found[number] = plain({**before, **one})
    return found


def written_rows(built: Built, rows: Any) -> list[dict[str, Any]]:
    """One dict for each row with what the model writes: ``index``, ``input``, ``label`` where there is one."""
    assert built.prepared.answers is not None
    try:
        written = built.prepared.answers(rows, built.args)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    inputs = _inputs(rows, built.prepared, len(written)) or [None] * len(written)
    pairs = enumerate(zip(inputs, written, strict=True))
    return [plain({"index": place, **({"input": row} if row else {}), **one}) for place, (row, one) in pairs]


def computed_rows(built: Built, rows: Any) -> list[dict[str, Any]]:
    """Predictions for rows by computing outputs of each; see ``prediction_rows``."""
    wanted, found = built.prepared.target, rows
    if wanted in columns_of(found) and hasattr(found, "remove_columns"):
        # Nothing is compared: labels that are missing or new do not matter.
        found = found.remove_columns(wanted)
    encoded = encoded_rows(built, found)
    return prediction_rows(built.prepared, rows, encoded, built.trainer.predict(encoded).predictions)


def encoded_rows(built: Built, rows: object) -> Any:
    """What the model takes of ``rows``; ConfigError where they are not of its kind."""
    try:
        return built.prepared.encode(rows)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _is_row_for_row(rows: Any, encoded: Any) -> bool:
    try:
        return len(rows) == len(encoded)
    except TypeError:
        return False


def _inputs(rows: Any, prepared: Prepared, count: int) -> list[dict[str, Any]] | None:
    """The columns of each row that can be written; None where there are none."""
    if not _has_columns(rows):
        return None
    features = getattr(rows, "features", None) or {}
    for name, feature in features.items():
        if getattr(feature, "decode", None) is True:
            # Its path is what one knows it by; nothing is decoded again.
            rows = rows.cast_column(name, type(feature)(decode=False))
    found = []
    for index in range(count):
        values = {name: _known_by(value) for name, value in rows[index].items() if name != prepared.target}
        found.append({name: value for name, value in values.items() if value is not _LEFT_OUT})
    return found if any(found) else None


def _has_columns(rows: Any) -> bool:
    return isinstance(getattr(rows, "column_names", None), list)


_LEFT_OUT = object()


def _known_by(value: Any) -> Any:
    """What stands for one value of a row; arrays and what has no words are left out."""
    if isinstance(value, Mapping) and set(value) == {"bytes", "path"}:
        return value["path"] or _LEFT_OUT
    if isinstance(value, (list, tuple, Mapping)):
        return value if len(value) <= _MOST_VALUES and len(repr(value)) <= 16 * _MOST_VALUES else _LEFT_OUT
    if isinstance(value, (str, bool, int, float, datetime.date, datetime.time, datetime.timedelta, np.generic)):
        return value
    return None if value is None else _LEFT_OUT


def _labels(rows: Any, prepared: Prepared, count: int) -> list[Any] | None:
    """What should have been predicted, in the words of a prediction; None where the data does not say."""
    target = prepared.target
    if target is None or target not in columns_of(rows):
        return None
    values = list(rows[target])[:count] if _has_columns(rows) else [rows[index][target] for index in range(count)]
    classes: list[str] = prepared.facts.get("classes") or []
    named = getattr((getattr(rows, "features", None) or {}).get(target), "names", None)
    counts_by_number = prepared.facts.get("numbered") or not _has_columns(rows)

    def words(value: Any) -> Any:
        number = int(value) if hasattr(value, "item") else value
        is_number = isinstance(number, int) and not isinstance(number, bool)
        if value is None or not classes:
            return (
                number if hasattr(value, "item") and not np.issubdtype(np.asarray(value).dtype, np.floating) else value
            )
        if is_number and named is not None:
            return named[number] if 0 <= number < len(named) else None
        if is_number and counts_by_number and 0 <= number < len(classes):
            return classes[number]
        return str(value)

    return [words(value) for value in values]


def plain(value: Any) -> Any:
    """What JSON can hold: a number that is none is null, everything else that is unknown is text."""
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, np.generic) or (hasattr(value, "item") and getattr(value, "ndim", 1) == 0):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as columns of a table; those of the input keep their names, unless a prediction has the same.

    >>> flat({"index": 0, "input": {"a": 1, "label": 2}, "prediction": "x", "probabilities": {"x": 0.9, "y": 0.1}})
    {'index': 0, 'a': 1, 'input.label': 2, 'prediction': 'x', 'probability.x': 0.9, 'probability.y': 0.1}
    """
    found: dict[str, Any] = {}
    for name, value in row.items():
        if name == "input":
            taken = {*row, "label", "prediction", "probability"}
            found |= {
                f"input.{key}" if key in taken or key.startswith("probability.") else key: one
                for key, one in value.items()
            }
        elif name == "probabilities":
            found |= {f"probability.{key}": one for key, one in value.items()}
        else:
            found[name] = value
    return found
