"""The services' packages: imported when a run starts, quietly, and named where they are missing."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trainwright.config.extras import is_installed


def package(module: str, tracker: str, install: str | None = None) -> Any:
    """The module, or the error that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _missing(install or module.partition(".")[0], tracker) from error


def require(module: str, tracker: str) -> None:
    """The same error for a package that is imported in another process only."""
    if not is_installed(module):
        raise _missing(module, tracker)


def _missing(name: str, tracker: str) -> ValueError:
    return ValueError(f"report_to={tracker!r} needs the package {name}: pip install {name}")


def only_errors() -> bool:
    """Whether the user wants to read errors alone: what packages print of their own accord is kept back then."""
    return logging.getLogger("trainwright").getEffectiveLevel() >= logging.ERROR


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Variables that a package reads when it is imported or starts, for that moment; the user's own win."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
