"""Commands in the order in which people need them, and what to do next."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from typer.core import TyperGroup

#: The first ones first; commands that are not named here come last.
_OF_USE = """
train init check resume evaluate predict runs show report compare tail ls cp demo look lr-find sweep soup export
launch run try prove estimate verify import recipe env
"""
_PLACES = {name: place for place, name in enumerate(_OF_USE.split())}
_MOST = 5
_LONGEST = 200_000


class Ordered(TyperGroup):
    """A group whose help begins with ``train``."""

    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: _PLACES.get(name, len(_PLACES)))


def next_steps(folder: Path, program: list[str]) -> str:
    """What somebody may want to do in ``folder``, which nobody has said."""
    command = shlex.join(program)
    lines = []
    runs = sorted(folder.glob("runs/*/experiment.yaml"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in _experiments(folder)[:_MOST]:
        name = shlex.quote(str(path.relative_to(folder)))
        lines += [f"  {command} check {name}", f"  {command} train {name}"]
    if runs:
        name = shlex.quote(str(runs[0].parent.relative_to(folder)))
        lines += [f"  {command} show {name}", f"  {command} evaluate {name}", f"  {command} runs"]
    if lines:
        found = "Here are experiments and runs. Next:" if runs else "Here are experiments. Next:"
        return "\n".join([found, *lines, f"All commands: {command} --help"])
    return "\n".join(
        [
            "Nothing is here yet. Begin with one of:",
            f"  {command} init    writes an experiment for your data: three questions",
            f"  {command} demo    trains a small network, in well under a minute",
            f"  {command} ls      examples to copy",
            f"All commands: {command} --help",
        ]
    )


def _experiments(folder: Path) -> list[Path]:
    """Files that begin their lines with the sections of an experiment."""
    found = []
    for path in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")]):
        try:
            text = "\n" + path.read_text(encoding="utf-8") if path.stat().st_size < _LONGEST else ""
        except (OSError, ValueError):
            continue
        if "\nmodel:" in text and "\ndata:" in text:
            found.append(path)
    return found
