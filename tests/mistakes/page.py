"""docs/mistakes.md, made of the table: ``python -m tests.mistakes.page > docs/mistakes.md``."""

from __future__ import annotations

import textwrap

from tests.mistakes.mistake import Mistake
from tests.mistakes.table import TABLE

_BEGINNING = """\
# What goes wrong, and what you are told

{count} mistakes that people make in their first hours, each with what trainwright says. Look for the words of your
message, or for what you did. `tests/mistakes` makes each of them and compares: how it ends, what is said, and that
no model and no checkpoint is written (a training that has begun leaves its folder, with what became of it). This page
is made of that table: `python -m tests.mistakes.page > docs/mistakes.md`.

- A command that was given something wrong says so in a few lines and ends with exit code 2; files, and runs that are
  there, stay as they are. `trainwright check EXPERIMENT` finds most of it in seconds.
- An argument that does not exist is a `TypeError`; a value that cannot be meant is a `ValueError`, before any work is
  done.
- Where data and model do not fit, the first step of a training fails with a `ValueError` that says why. The original
  error is attached (`raise ... from`), so the traceback shows both. Labels for which a classifier of transformers has
  no class are found before the step. `compute_metrics` is tried before the first step where one of its metrics
  decides which model is best, and otherwise at the first evaluation.
- An error of another kind in the first step keeps its type, and has a note that says in which layer it was raised,
  with which shapes.

In the examples `samples()` makes samples such as `{{"x": tensor of 4 numbers, "labels": 0 or 1}}`, `Net()` takes such
`x` and gives two numbers, one for each class; `e.yaml` is a small experiment on `table.csv`. `...` stands for what is
long, or differs from machine to machine.
"""


def page() -> str:
    """The whole page."""
    parts = [_BEGINNING.format(count=len(TABLE))]
    for chapter in dict.fromkeys(mistake.chapter for mistake in TABLE):
        parts.append(f"## {chapter}\n")
        parts += [_entry(mistake) for mistake in TABLE if mistake.chapter == chapter]
    return "\n".join(parts)


def _entry(mistake: Mistake) -> str:
    shown = mistake.shown.replace("  # type: ignore", "")
    told = f"{mistake.ends.__name__}: {mistake.says}" if isinstance(mistake.ends, type) else mistake.says
    return f"### {mistake.title}\n\n{textwrap.indent(shown, '    ')}\n\n{_quoted(told)}\n"


def _quoted(text: str) -> str:
    """A block of plain text: nothing in a message is markup."""
    lines = textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)
    return "```text\n" + "\n".join(lines) + "\n```"


if __name__ == "__main__":
    print(page(), end="")
