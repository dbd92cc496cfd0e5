"""Loggers; the root logger is left alone."""

from __future__ import annotations

import logging


def getlogger(name: str, log_level: str | int = "INFO") -> logging.Logger:
    """The logger of that name at that level."""
    logger = logging.getLogger(name)
    logger.setLevel(log_level)
    return logger
