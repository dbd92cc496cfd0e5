"""The ``trainwright`` command."""

from trainwright.cli.app import main

__all__ = ["main"]
