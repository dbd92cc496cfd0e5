"""What a mistake of the table is."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Mistake:
    """Something that people write, and what they are told."""

    chapter: str
    title: str
    #: A function whose body is the mistake, or the words of a command.
    done: Callable[[], object] | str
    #: The whole message, or with ... in place of what differs from machine to machine or is long.
    says: str
    #: The type of the exception, or the exit code of the command.
    ends: type[Exception] | int
    #: Names of files beside the usual ones that the mistake needs.
    needs: tuple[str, ...] = ()
    #: Whether the run's folder has been made by then; it holds no checkpoint and no model.
    has_begun: bool = False

    @property
    def shown(self) -> str:
        """What the reader sees: the body of the function, or the command line."""
        if isinstance(self.done, str):
            return f"trainwright {self.done}"
        lines = inspect.getsource(self.done).splitlines()
        first = next(number for number, line in enumerate(lines) if line.startswith("def "))
        return textwrap.dedent("\n".join(lines[first + 1 :]))

    @property
    def name(self) -> str:
        return self.title.lower().replace(" ", "-").replace("`", "")
