"""Loggers that show on the terminal; the root logger is left alone."""

from __future__ import annotations

import logging

_FORMAT = "%(asctime)s:%(levelname)s : %(name)s : %(lineno)d : %(message)s"


def getlogger(name: str, log_level: str | int = "INFO") -> logging.Logger:
    """The logger of that name at that level. It gets a handler of its own only where nobody else shows its messages."""
    logger = logging.getLogger(name)
    logger.setLevel(log_level)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(_FORMAT))
        logger.addHandler(handler)
    return logger
