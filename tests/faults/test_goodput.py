"""A run that is killed again and again ends as if nobody had disturbed it, and repeats no more than it must."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def goodput(*options: str) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "bench/goodput.py"), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_ten_kills_cost_the_steps_since_the_last_save_and_nothing_else() -> None:
    """Of the training process, of its DataLoader's worker, of everything at once, at moments drawn at random."""
    found = goodput("--warm", "--kills", "10", "--interval", "40", "--save-every", "20", "--seed", "1")
    assert sum(found["kills"].values()) == 10
    assert len(found["kills"]) == 3
    assert found["same_bits"]
    # A kill costs less than the steps up to the save that was under way, or that was to come.
    assert found["useful"] <= found["computed"] < found["useful"] + 10 * 2 * 20


@pytest.mark.full
def test_kills_of_one_of_two_ranks_are_survived() -> None:
    found = goodput("--processes", "2", "--kills", "5", "--interval", "40", "--save-every", "20", "--seed", "1")
    assert sum(found["kills"].values()) == 5
    assert found["same_bits"]
