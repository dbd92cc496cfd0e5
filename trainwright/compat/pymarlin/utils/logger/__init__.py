"""PyMarlin's path for what is in this folder."""

from trainwright.compat.pymarlin.utils.logger.logging_utils import getlogger

__all__ = ["getlogger"]
