"""Small things that scripts import."""

from __future__ import annotations

import gc
import inspect
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import torch

from trainwright.compat.accmt.cadence import unit_of
from trainwright.compat.accmt.this_process import ThisProcess

_NUMBER = re.compile(r"(\d+)(\D.*)?")


def combine_dicts(*dicts: Mapping[Any, Any]) -> dict[Any, Any]:
    """All entries in one dict; of two under one key the later.

    >>> combine_dicts({"a": 1}, {"b": 2})
    {'a': 1, 'b': 2}
    """
    return {key: value for each in dicts for key, value in each.items()}


def filter_kwargs(kwargs: Mapping[str, Any], fn: Callable[..., Any]) -> dict[str, Any]:
    """Those of the keyword arguments that ``fn`` takes."""
    known = inspect.signature(fn).parameters
    return {name: value for name, value in kwargs.items() if name in known}


def get_number_and_unit(string: str) -> tuple[int, str | None]:
    """The number (1 where there is none) and the unit: "epoch", "step", "eval", or the word as it stands.

    >>> get_number_and_unit("2 epochs"), get_number_and_unit("1000"), get_number_and_unit("eval")
    ((2, 'epoch'), (1000, None), (1, 'eval'))
    """
    found = _NUMBER.fullmatch(string.strip())
    word = (found[2] or "").strip() if found else string.strip()
    return int(found[1]) if found else 1, (unit_of(word) or word) or None


def is_url(string: str) -> bool:
    """Whether it is the address of a server.

    >>> is_url("https://www.google.com"), is_url("localhost"), is_url("a/folder")
    (True, True, False)
    """
    if string in ("localhost", "127.0.0.1"):
        return True
    parts = urlsplit(string)
    return parts.scheme in ("http", "https", "ftp", "ftps") and bool(parts.hostname) and " " not in string


def clear_device_cache(garbage_collection: bool = False) -> None:
    """Give memory of the device back that nothing uses."""
    if garbage_collection:
        gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def get_time_prefix() -> str:
    """The time, as lines begin with it."""
    return f"[{datetime.now().isoformat(sep=' ', timespec='milliseconds').replace('.', ',')}]"


def rprint(*args: object, rank: int = 0, add_time_prefix: bool = True, start_char: str = "\n", **kwargs: Any) -> None:
    """Print in one process only."""
    if ThisProcess().process_index == rank:
        begin = f"{start_char}{get_time_prefix()} " if add_time_prefix else start_char
        kwargs.setdefault("sep", "")
        print(begin, *args, **kwargs)


def global_randint(a: int = 0, b: int = 2147483647) -> int:
    """A random number from ``a`` to ``b``, the same in every process."""
    return int(ThisProcess().gather(torch.randint(a, b + 1, (1,)))[0])
