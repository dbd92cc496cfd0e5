"""The picture of a training in a terminal, from a real one: ``python -m tests.terminal_picture`` takes ten seconds."""

from __future__ import annotations

import io
import re
import tempfile
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

from tests.terminal import watch

PICTURE = Path(__file__).parents[1] / "docs/pictures/terminal.svg"
_DEMO = """
import sys
from trainwright.cli import main
sys.argv = ["trainwright", "demo", "lm", "--output", sys.argv[1]]
main()
"""
_COLUMNS, _LINES = 96, 18
_NAMES = {"brown": "yellow", "default": None}


def draw() -> str:
    """What a terminal shows when three quarters of ``trainwright demo lm`` are done."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "demo.py"
        script.write_text(_DEMO)
        seen = watch(script, str(Path(folder) / "runs"), columns=_COLUMNS, lines=_LINES, styled=True)
    whole = [rows for rows in seen.styled if _is_whole(rows)]
    return _svg(whole[len(whole) * 3 // 4])


def _is_whole(rows: list[list[pyte.screens.Char]]) -> bool:
    lines = ["".join(char.data for char in row).rstrip() for row in rows]
    shown = [line for line in lines if line]
    return bool(shown) and shown[-1].startswith("saved ") and any(line.startswith("train ") for line in shown)


def _svg(rows: list[list[pyte.screens.Char]]) -> str:
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    while not "".join(char.data for char in rows[-1]).strip():
        rows = rows[:-1]
    for row in rows:
        console.print(Text.assemble(*((char.data, _style(char)) for char in row)), end="", soft_wrap=True)
        console.print()
    text = console.export_svg(title="trainwright demo lm", unique_id="terminal")
    # A picture that is looked at loads nothing.
    return re.sub(r"@font-face \{.*?\}\s*", "", text, flags=re.DOTALL)


def _style(char: pyte.screens.Char) -> Style:
    name = _NAMES.get(char.fg, char.fg)
    colour = f"#{name}" if name and re.fullmatch(r"[0-9a-f]{6}", name) else name
    return Style(color=colour, bold=char.bold or None)


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw() + "\n", encoding="utf-8")
