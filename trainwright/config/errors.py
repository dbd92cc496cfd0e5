"""The error that speaks to the author of a configuration."""

from __future__ import annotations

_LONGEST = 1_000


class ConfigError(ValueError):
    """Something in a configuration or on a command line that its author can put right; the message says how."""

    def __init__(self, message: str) -> None:
        # It may quote what was written, and that may be a megabyte.
        half = _LONGEST // 2
        super().__init__(message if len(message) <= _LONGEST else f"{message[:half]} [...] {message[-half:]}")


class MissingPackage(ImportError):
    """An optional package is not installed; the message names the command that installs it."""
