"""Whatever kills a process during a save: the next one finds a good checkpoint and ends with the same bits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RUNNER = Path(__file__).with_name("runner.py")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run(*words: object) -> dict[str, Any]:
    command = [sys.executable, str(RUNNER), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def assert_survives(folder: Path, points: list[int]) -> None:
    results = run("crash", folder, *points)["results"]
    assert len(results) == len(points)
    for result in results:
        assert result["first"] == 77, f"the process did not get to operation {result['point']}"
        assert result["second"] == 0, result
        assert result["equal"], result
        assert result["leftovers"] == [], result


@pytest.fixture
def operations(folder: Path) -> list[tuple[str, str]]:
    return [(name, Path(where).name) for name, where in run("count", folder)["operations"]]


def test_sampled_operations(folder: Path, operations: list[tuple[str, str]]) -> None:
    """Around each rename, the first and last operation, and every ninth."""
    renames = {n for n, (name, _) in enumerate(operations, 1) if name == "rename"}
    points = {1, len(operations), *range(4, len(operations), 13)} | {min(n + 1, len(operations)) for n in renames}
    assert_survives(folder, sorted(points | renames))


@pytest.mark.full
def test_every_operation(folder: Path, operations: list[tuple[str, str]]) -> None:
    assert_survives(folder, list(range(1, len(operations) + 1)))


def test_nothing_is_published_before_it_is_on_disk(operations: list[tuple[str, str]]) -> None:
    """For every checkpoint: the manifest is written last, then all is forced out together, then renamed."""
    saves: list[list[tuple[str, str]]] = [[]]
    for name, where in operations:
        if name == "mkdir" and saves[-1]:
            saves.append([])
        saves[-1].append((name, where))
    assert len(saves) == 4
    for save in saves:
        rename = next(n for n, (name, where) in enumerate(save) if name == "rename" and where.endswith(".writing"))
        before = save[:rename]
        written = [where for name, where in before if name == "write"]
        forced = [where for name, where in before if name == "fsync"]
        assert set(written) <= set(forced)
        for where in set(written):
            last_write = max(n for n, entry in enumerate(before) if entry == ("write", where))
            assert ("fsync", where) in before[last_write:]
        assert written[-1] == "manifest.json"
        last_write = max(n for n, (name, _) in enumerate(before) if name == "write")
        after = [where for name, where in before[last_write:] if name == "fsync"]
        assert any(where.endswith(".writing") for where in after), "the folder itself too"
        # Together, after everything is written: a slow disk takes as long for all of them as for one.
        assert set(written) <= set(after)


@pytest.mark.full
def test_twenty_kills_at_random_moments(folder: Path, seed: int) -> None:
    outcome = run("kill", folder, seed, 20)
    assert outcome["wrong"] == []
    assert outcome["kills"] >= 20
    assert outcome["ends"] >= 1
