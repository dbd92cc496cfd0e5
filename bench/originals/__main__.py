"""Run an original project's own files through its door, and write what was found into the door's page.

python -m bench.originals pymarlin path/to/PyMarlin             # all files; writes docs/from-pymarlin.md
python -m bench.originals pymarlin path/to/PyMarlin -k cifar    # some; prints, and writes nothing

The repository is copied first and stays as it is. Ends with an error where a file does otherwise than its case says.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.originals.cases import Case, Door

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- made by bench/originals -->", "<!-- end -->"
#: A file that takes longer than this hangs.
SECONDS = 900


@dataclass(frozen=True)
class Found:
    """What a case did: its cell in the table, and what it printed where it did otherwise than expected."""

    cell: str
    surprise: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("door", choices=["accmt", "mindnlp", "pymarlin", "sparseml"])
    parser.add_argument("repository", type=Path)
    parser.add_argument("-k", dest="only", default="", help="only files whose path contains this")
    asked = parser.parse_args()
    door: Door = importlib.import_module(f"bench.originals.{asked.door}").DOOR
    cases = [case for case in door.cases if asked.only in case.file]
    with tempfile.TemporaryDirectory() as name:
        copy, data = Path(name) / "repository", Path(name) / "data"
        data.mkdir()
        copied(asked.repository, copy, door)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **door.prepare(copy, data)}
        found = {}
        for case in cases:
            found[case.file, case.note] = run(case, copy, data, environment)
            print(f"{case.file}: {found[case.file, case.note].cell}", flush=True)
    if not asked.only:
        commit = subprocess.run(
            ["git", "-C", asked.repository, "log", "-1", "--format=%h, %cs"],
            check=False,
            capture_output=True,
            text=True,
        )
        write(ROOT / door.page, commit.stdout.strip(), found)
    surprises = {f"{file} {note}": one.surprise for (file, note), one in found.items() if one.surprise}
    for file, text in surprises.items():
        print(f"\n=== {file} did otherwise than expected\n{text}", file=sys.stderr)
    return 1 if surprises else 0


def copied(repository: Path, copy: Path, door: Door) -> None:
    """Copy the repository and change its import lines, as a user would in an editor."""
    shutil.copytree(repository, copy, ignore=shutil.ignore_patterns(".git", *door.unneeded))
    for path in copy.rglob("*.py"):
        text = changed = path.read_text(encoding="utf-8")
        for pattern, replacement in door.imports:
            changed = re.sub(pattern, replacement, changed, flags=re.MULTILINE)
        if changed != text:
            path.write_text(changed, encoding="utf-8")


def run(case: Case, copy: Path, data: Path, environment: Mapping[str, str]) -> Found:
    """Run one file in the copy."""
    if case.refused:
        return Found(f"does not: {case.refused}")
    for change in case.changes:
        path = copy / (change.file or case.file)
        text = path.read_text(encoding="utf-8")
        if change.new and change.new in text and change.old not in text:
            # Another case of the same file, or of one that shares it, has made it.
            continue
        if change.old not in text:
            return Found("?", f"{path} has no {change.old!r}")
        path.write_text(text.replace(change.old, change.new), encoding="utf-8")
    report = copy / "report.xml"
    places = {"copy": str(copy), "data": str(data)}
    command = [part.format(**places) for part in case.command] or [
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", str(copy / case.file))
    ]
    try:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=copy / case.folder,
            env=dict(environment),
            check=False,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        return Found("does not end", str(error.stdout)[-3000:])
    printed = (done.stdout + done.stderr)[-6000:]
    if case.command:
        return Found(verdict(case), "" if done.returncode == 0 else printed)
    return tested(case, report, printed)


def tested(case: Case, report: Path, printed: str) -> Found:
    """Compare the outcomes of a file of tests with what its case says."""
    if not report.exists():
        return Found("?", printed)
    outcomes: dict[str, set[str]] = {}
    passed = total = 0
    for test in ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in test} & {"failure", "error", "skipped"}
        outcomes.setdefault(re.sub(r"\[.*", "", test.get("name", "")), set()).update(kinds or {"passed"})
        passed, total = passed + (not kinds), total + ("skipped" not in kinds)
    report.unlink()
    bad = {name for name, kinds in outcomes.items() if kinds & {"failure", "error"}}
    surprise = "" if bad == set(case.failing) and total else f"failed: {sorted(bad)}\n{printed}"
    reasons = "; ".join(f"`{name}`: {why}" for name, why in case.failing.items())
    return Found(f"{verdict(case)} ({passed} of {total} tests{'; ' + reasons if reasons else ''})", surprise)


def verdict(case: Case) -> str:
    """Say how much had to be changed, and whether all of it runs."""
    runs = "runs in part" if case.failing else "runs"
    if not case.changes:
        return f"{runs}, as is" if case.failing else f"{runs} as is"
    return f"{runs} with this change: " + "; ".join(dict.fromkeys(change.said for change in case.changes))


def write(page: Path, commit: str, found: Mapping[tuple[str, str], Found]) -> None:
    """Replace the table between the two marks of the page."""
    rows = ["| file | with the import changed |", "|---|---|"]
    rows += [f"| `{file}`{', ' + note if note else ''} | {one.cell} |" for (file, note), one in found.items()]
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    table = "\n".join([f"Of commit {commit}:", "", *rows])
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
