"""Values that people log, as JSON can hold them, and back."""

from __future__ import annotations

import json
import math
from typing import Any

_NONFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def plain_values(value: Any, *, nonfinite_as_text: bool = False) -> Any:
    """Return ``value`` in dicts, lists, numbers and text; numbers of arrays and tensors stay numbers.

    With ``nonfinite_as_text`` NaN and infinity become strings: bare ``NaN`` is not JSON and breaks other readers.

    >>> plain_values({"loss": math.nan, 3: (1, 2), "where": object}, nonfinite_as_text=True)
    {'loss': 'nan', '3': [1, 2], 'where': "<class 'object'>"}
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return str(float(value)) if nonfinite_as_text and not math.isfinite(value) else value
    if isinstance(value, dict):
        return {_key(key): plain_values(item, nonfinite_as_text=nonfinite_as_text) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_values(item, nonfinite_as_text=nonfinite_as_text) for item in value]
    if callable(as_list := getattr(value, "tolist", None)) and not isinstance(value, type):
        # Arrays and tensors; one of a single number is that number.
        return plain_values(as_list(), nonfinite_as_text=nonfinite_as_text)
    return str(value)


def _key(key: object) -> str:
    if isinstance(key, str):
        return key
    return json.dumps(key) if key is None or isinstance(key, (bool, int, float)) else str(key)


def with_nonfinite(value: Any) -> Any:
    """Return ``value`` with "nan", "inf" and "-inf" as the numbers that they stood for."""
    if isinstance(value, str):
        return _NONFINITE.get(value, value)
    if isinstance(value, dict):
        return {key: with_nonfinite(item) for key, item in value.items()}
    return [with_nonfinite(item) for item in value] if isinstance(value, list) else value


def same_values(one: Any, other: Any) -> bool:
    """Return True when two values say the same; NaN equals NaN, a list is no tuple, and ``True`` is not 1.

    >>> same_values({"loss": math.nan, "rows": [1]}, {"rows": [1], "loss": float("nan")}), same_values([True], [1.0])
    (True, False)
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_values(item, other[key]) for key, item in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same_values, one, other))
    return one == other or (one != one and other != other)
