"""Handlers of ``logging`` that write to a stream: each keeps the one it was made with, whoever replaces sys.stderr."""

from __future__ import annotations

import logging
from typing import Any


def handlers_on(stream: object) -> list[logging.StreamHandler[Any]]:
    """All handlers in this process that write to ``stream``."""
    loggers = [logging.getLogger(), *logging.root.manager.loggerDict.copy().values()]
    found = [handler for one in loggers if isinstance(one, logging.Logger) for handler in one.handlers]
    # One handler may serve several loggers.
    unique = {id(handler): handler for handler in found if isinstance(handler, logging.StreamHandler)}
    return [handler for handler in unique.values() if handler.stream is stream]
