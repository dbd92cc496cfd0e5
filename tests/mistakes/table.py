"""All mistakes, by chapter."""

from __future__ import annotations

from tests.mistakes import at_the_command_line, in_python
from tests.mistakes.mistake import Mistake

TABLE: list[Mistake] = [*in_python.FOUND, *at_the_command_line.FOUND]
