"""``verbose``: whether anything is said."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("trainwright")


@contextmanager
def as_loud_as_asked(verbose: bool) -> Iterator[None]:
    """``verbose=False``: no notes and no warnings, only errors."""
    if verbose:
        yield
        return
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
