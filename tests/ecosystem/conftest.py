"""Writes what the tests found into the table in docs/libraries.md; what was not run stays as it was."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "libraries.md"
BEGIN, END = "<!-- made by tests/ecosystem/conftest.py -->\n", "<!-- end -->"
#: The script of a case -> the package it tries, or the folder of a checkout.
PACKAGES = {
    "trl": "trl",
    "sentence": "sentence-transformers",
    "peft": "peft",
    "setfit": "setfit",
    "axolotl": "axolotl",
    "llamafactory": "llamafactory",
}
CHECKOUTS = {"alpaca": "stanford_alpaca", "llava": "LLaVA"}
#: How the name of a test and the last word of its case are called in the table.
COLUMNS = {
    ("transformers_loop", "1"): "equal, one process",
    ("transformers_loop", "2"): "equal, two processes",
    ("not_interrupted", ""): "resume",
    ("survives", "SIGTERM"): "SIGTERM",
    ("survives", "SIGKILL"): "kill -9",
}
#: (library, training) -> the library with its version, and what each column says.
Rows = dict[tuple[str, str], tuple[str, dict[str, str]]]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Once it has run: what it found goes over what the page had."""
    if config.getoption("-m") != "ecosystem":
        return
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    made, _, after = rest.partition(END)
    rows, changed = read_rows(made), False
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            changed = note(rows, report.nodeid, "yes" if outcome == "passed" else "**no**") or changed
    if changed:
        PAGE.write_text(before + BEGIN + table(rows) + END + after)


def read_rows(made: str) -> Rows:
    """The table as it stands."""
    rows: Rows = {}
    for line in made.splitlines():
        words = [word.strip() for word in line.strip("|").split("|")]
        if line.startswith("| ") and len(words) == len(COLUMNS) + 2 and words[0] != "library":
            cells = dict(zip(COLUMNS.values(), words[2:], strict=True))
            rows[words[0].partition(" ")[0], words[1]] = (words[0], cells)
    return rows


def note(rows: Rows, node: str, said: str) -> bool:
    """Put one test's outcome into its cell; False for tests that have none."""
    test, _, inside = node.rpartition("::")[2].removesuffix("]").partition("[")
    for (ending, last), column in COLUMNS.items():
        case = inside.removesuffix(f"-{last}") if last else inside
        if test.endswith(ending) and (case != inside or not last) and not case.endswith("-unseeded"):
            script, _, training = case.partition("-")
            library = PACKAGES.get(script) or CHECKOUTS[script]
            was, cells = rows.get((library, training), (library, dict.fromkeys(COLUMNS.values(), "")))
            rows[library, training] = (version_of(script, was), cells | {column: said})
            return True
    return False


def version_of(script: str, was: str) -> str:
    """The library as it is here; of a checkout without its history, as the page says."""
    if script in PACKAGES:
        return f"{PACKAGES[script]} {importlib.metadata.version(PACKAGES[script])}"
    folder = Path(os.environ["REPOSITORIES"]) / CHECKOUTS[script]
    words = ["git", "-C", str(folder), "log", "-1", "--format=%h"] if (folder / ".git").exists() else ["true"]
    commit = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    return f"{CHECKOUTS[script]} {commit}" if commit else was


def table(rows: Rows) -> str:
    """Rows in the order that the page has them, new ones last; what was not tried is left open."""
    lines = [f"| library | training | {' | '.join(COLUMNS.values())} |", "|---" * (len(COLUMNS) + 2) + "|"]
    for (_, training), (library, cells) in rows.items():
        lines.append(f"| {library} | {training} | {' | '.join(cells[column] for column in COLUMNS.values())} |")
    found = {name: importlib.metadata.version(name) for name in ("transformers", "accelerate", "torch")}
    # Without "+cpu".
    with_ = ", ".join(f"{name} {version.partition('+')[0]}" for name, version in found.items())
    return "\n".join(lines) + f"\n\nWith {with_}; an empty cell was not tried.\n"
