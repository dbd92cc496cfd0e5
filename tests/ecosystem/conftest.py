"""Writes the table in docs/libraries.md from what the tests found."""

from __future__ import annotations

import importlib.metadata
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "libraries.md"
BEGIN, END = "<!-- made by tests/ecosystem/conftest.py -->\n", "<!-- end -->"
PACKAGES = {"trl": "trl", "sentence": "sentence-transformers", "peft": "peft", "setfit": "setfit"}
#: What a test's name says in the table.
COLUMNS = {
    "transformers_loop[{case}-1]": "equal, one process",
    "transformers_loop[{case}-2]": "equal, two processes",
    "not_interrupted[{case}]": "resume",
    "survives[{case}-SIGTERM]": "SIGTERM",
    "survives[{case}-SIGKILL]": "kill -9",
}


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Once everything has run: a table of it."""
    if config.getoption("-m") != "ecosystem" or config.getoption("-k"):
        return
    outcomes = {
        report.nodeid: outcome for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])
    }
    cases = sorted({node.partition("[")[2].rpartition("-")[0] for node in outcomes if "transformers_loop[" in node})
    if cases:
        text = PAGE.read_text()
        before, _, rest = text.partition(BEGIN)
        PAGE.write_text(before + BEGIN + table(cases, outcomes) + END + rest.partition(END)[2])


def table(cases: list[str], outcomes: dict[str, str]) -> str:
    """Rows by library; what was not tried is left open."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for case in cases:
        for pattern, column in COLUMNS.items():
            ending = pattern.format(case=case)
            for node, outcome in outcomes.items():
                if node.endswith(ending):
                    found[case][column] = "yes" if outcome == "passed" else "**no**"
    lines = [f"| library | training | {' | '.join(COLUMNS.values())} |", "|---" * (len(COLUMNS) + 2) + "|"]
    for case in cases:
        script, _, name = case.partition("-")
        version = f"{PACKAGES[script]} {importlib.metadata.version(PACKAGES[script])}"
        cells = [found[case].get(column, "") for column in COLUMNS.values()]
        lines.append(f"| {version} | {name} | {' | '.join(cells)} |")
    with_ = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("transformers", "accelerate", "torch"))
    return "\n".join(lines) + f"\n\nWith {with_}; an empty cell was not tried.\n"
