"""Options from a file for a class: known by name, and ``no`` where true or false is meant."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from trainwright.config.registry import suggestion

_WORDS = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}


def fitting_options(make: Any, options: Mapping[str, Any], shown: Mapping[str, str] | None = None) -> dict[str, Any]:
    """``options`` as ``make`` takes them; one that it does not know is an error that names those it does.

    ``shown`` are the names that a message uses in place of the parameters' own.

    >>> def lamp(*, bright: bool = True, height: int = 1): ...
    >>> fitting_options(lamp, {"bright": "no", "height": 2})
    {'bright': False, 'height': 2}
    >>> fitting_options(lamp, {"brihgt": True})
    Traceback (most recent call last):
    ValueError: there is no option 'brihgt' (did you mean 'bright'?); there are bright, height.
    """
    takes = inspect.signature(make).parameters
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in takes.values())
    found = dict(options)
    for name, value in options.items():
        if name not in takes:
            if takes_any:
                continue
            names = [(shown or {}).get(one, one) for one in takes]
            listed = ", ".join(names) or "none"
            raise ValueError(f"there is no option {name!r}{suggestion(name, names)}; there are {listed}.")
        if isinstance(takes[name].default, bool) and not isinstance(value, bool):
            if str(value).lower() not in _WORDS:
                raise ValueError(f"{name}={value!r} should be true or false.")
            found[name] = _WORDS[str(value).lower()]
    return found
