"""The error that speaks to the author of a configuration."""

from __future__ import annotations


class ConfigError(ValueError):
    """Something in a configuration or on a command line that its author can put right; the message says how."""
