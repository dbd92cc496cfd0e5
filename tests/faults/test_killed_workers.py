"""A loader's worker that is killed costs no finished step, whatever the main process is doing at that moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.killed_workers import CASES, STEP

#: Those in which nothing was rescued before; the others run in `make test-full`.
SAMPLED = ["in the update", "in a background save", "while waiting for data"]
ROOT = Path(__file__).parents[2]


def tried(folder: Path, names: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.killed_workers", str(folder), *names],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=170,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def assert_rescued(name: str, found: dict[str, Any]) -> None:
    kind, message = found["error"]
    assert found["end"] == found["straight"]
    # Far below what torch takes to join workers that do not answer.
    assert found["seconds"] < 60
    if name.startswith("at random") and kind == "":
        # The one that was killed had just been told to leave.
        return
    if name == "in the rescue of another error":
        assert kind == "ValueError"
    else:
        assert kind == "WorkerDied"
        assert "was killed by SIGKILL, as the kernel does when the machine runs short of memory" in message
    assert "rescued" in found["events"]
    assert "not_saved" not in found["events"]
    # The step that was under way is finished; the next one may have been, by the time its batch is missed.
    if not name.startswith("at random"):
        assert found["saved"][-1] in {f"checkpoint-{step}" for step in range(STEP - 1, STEP + 2)}


@pytest.mark.slow
def test_the_last_boundary_is_rescued(folder: Path) -> None:
    for name, found in tried(folder, SAMPLED).items():
        assert_rescued(name, found)


@pytest.mark.full
@pytest.mark.parametrize("words", ["in ", "before ", "after ", "as ", "persistent", "spawned", "both", "at random"])
def test_the_last_boundary_is_rescued_at_every_moment(words: str, folder: Path) -> None:
    names = [name for name in CASES if name.startswith(words) and name not in SAMPLED]
    for name, found in tried(folder, names).items():
        assert_rescued(name, found)
