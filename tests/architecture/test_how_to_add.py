"""CONTRIBUTING.md says how to add things: followed to the letter in a copy of the package, every one of them acts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_FILES = 3
ORDER = "tests/loop/test_event_order.py::test_the_order_of_all_training_events"


def sections() -> dict[str, list[tuple[str, str, str]]]:
    """Heading -> (kind of block, path, text) of each of its blocks."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    page = page.partition("## How to add\n")[2].partition("\n## ")[0]
    found = {}
    for part in page.split("\n### ")[1:]:
        blocks = re.findall(r"^```(python|diff)\n# (\S+)\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
        found[part.splitlines()[0]] = blocks
    return found


SECTIONS = sections()


def change(text: str, diff: str) -> str:
    """Apply each hunk where its lines stand, exactly once."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        assert text.count(f"\n{before}") == 1, f"these lines should stand there once:\n{before}"
        text = text.replace(f"\n{before}", f"\n{after}")
    return text


def test_each_is_short() -> None:
    wanted = {"optimizer", "event", "strategy", "tracker", "front door", "modifier", "experiment task"}
    assert {heading.split(" ", 1)[1] for heading in SECTIONS} == wanted
    for heading, blocks in SECTIONS.items():
        files = [path for _, path, _ in blocks]
        assert len(files) == len(set(files)) <= MOST_FILES, heading
        assert sum(path.startswith("tests/") and "/test_" in path for path in files) == 1, heading


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, with what all sections add to it."""
    folder = tmp_path_factory.mktemp("followed")
    for name in ("trainwright", "tests"):
        # With what is compiled already: to compile the package again takes longer than the tests.
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("old_checkpoints"))
    for blocks in SECTIONS.values():
        for kind, path, text in blocks:
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            assert file.exists() == (kind == "diff"), path
            file.write_text(change(file.read_text(), text) if kind == "diff" else text)
    return folder


@pytest.fixture(scope="module")
def outcome(folder: Path) -> str:
    """What pytest says about the tests of all sections, in one process: most of its time is the import of torch."""
    tests = [path for blocks in SECTIONS.values() for _, path, _ in blocks if "/test_" in path]
    # Nothing that was there before may suffer.
    tests += ["tests/loop/test_calls_per_step.py", ORDER]
    # Settings of its own, so that none of ours are looked for above it.
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "OMP_NUM_THREADS": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--tb=short", *tests]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.xdist_group("how_to_add")
@pytest.mark.parametrize("heading", SECTIONS)
def test_following_it_works(heading: str, outcome: str) -> None:
    test = next(path for _, path, _ in SECTIONS[heading] if "/test_" in path)
    assert f"PASSED {test}::" in outcome, outcome[-6000:]


@pytest.mark.slow
@pytest.mark.xdist_group("how_to_add")
def test_nothing_that_was_there_fails(outcome: str) -> None:
    assert "FAILED" not in outcome
    assert f"PASSED {ORDER}" in outcome, outcome[-3000:]


@pytest.mark.slow
@pytest.mark.xdist_group("how_to_add")
def test_what_it_shows_is_formatted_and_typed(folder: Path) -> None:
    """As ``make check`` will ask."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    written = sorted({path for blocks in SECTIONS.values() for _, path, _ in blocks})
    for words in (["ruff", "format", "--check"], ["ruff", "check"], ["pyrefly", "check", "--python-interpreter-path"]):
        program, *options = words
        interpreter = [sys.executable] if program == "pyrefly" else []
        command = [str(Path(sys.executable).parent / program), *options, *interpreter, *written]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
