"""Does what a mistake says, and tells how it ended."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from typer.testing import CliRunner

from tests.mistakes.mistake import Mistake
from trainwright.cli.app import app


class Ending(NamedTuple):
    """How it ended, and what was said."""

    ends: type[BaseException] | int
    said: str
    cause: BaseException | None = None


def tried(mistake: Mistake) -> Ending:
    """Make the mistake in the current folder."""
    if isinstance(mistake.done, str):
        done = CliRunner().invoke(app, shlex.split(mistake.done), prog_name="trainwright")
        return Ending(done.exit_code, plain(done.output))
    try:
        mistake.done()
    except Exception as error:
        return Ending(type(error), plain(str(error)), error.__cause__)
    return Ending(0, "nothing")


def plain(text: str) -> str:
    """One line: without the frames that typer draws and the hint that it always gives, and without colours."""
    text = re.sub(r"\x1b\[[0-9;]*m|[╭╮╰╯│─]", " ", text)
    return " ".join(text.split())
