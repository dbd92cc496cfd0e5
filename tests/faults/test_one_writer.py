"""One training at a time in a folder: the second is refused by name, and a killed one keeps nobody waiting.

Most cases run in ``test_processes.py`` too.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.faults.forking import outcomes
from tests.faults.one_writer import CASES, LONG

EVERY_OTHER = list(range(2, 13, 2))


def assert_one_writer(name: str, found: dict[str, Any], straight: str, longer: str) -> None:
    assert "run.lease.json" not in found["files"]
    # A wait for a beat would have taken longer than this, and the test would see it.
    assert found["seconds"] < LONG / 2
    if name in ("two processes", "without locks", "without locks, elsewhere"):
        host = "elsewhere" if "elsewhere" in name else ""
        assert f"process {found['pid']} on {host}" in found["refused"]
        assert "take_over=True" in found["refused"]
        # And the first one has not noticed.
        assert (found["code"], found["first"]) == (0, straight)
        assert found["logged"] == EVERY_OTHER
        assert [kind for kind in found["events"] if kind != "deleted"] == ["saved"] * 4
    elif name.startswith("killed"):
        assert found["code"] == -signal.SIGKILL
        assert (found["end"], found["logged"]) == (straight, EVERY_OTHER)
        assert "lock_recovered" in found["events"]
    elif name.startswith("asked"):
        assert (found["waiting"], found["marked"], found["code"], found["first"]) == (75, False, 0, straight)
        assert [kind for kind in found["events"] if kind != "deleted"] == ["saved"] * 4
    elif name == "copied":
        assert (found["end"], found["code"], found["first"]) == (straight, 0, straight)
    elif name == "silent elsewhere":
        assert (found["end"], found["logged"]) == (straight, EVERY_OTHER)
        assert "lock_taken_over" in found["events"]
    else:
        assert found["end"] == longer
        assert found["logged"] == list(range(2, 61, 2))
        assert found["checkpoints"] == ["checkpoint-56", "checkpoint-60"]
        # The first one ended when it noticed, and wrote nothing from then on.
        assert (found["code"], found["untouched"]) == (97, True)
        assert "was taken over by" in found["said"]
        kind = "lock_taken_over" if name == "suspended" else "lock_forced"
        assert found["events"].count(kind) == 1
        assert "rescued" not in found["events"]


@pytest.mark.full
def test_every_way_in_which_two_trainings_can_meet(folder: Path) -> None:
    found = outcomes(folder, {"one_writer": list(CASES)})["one_writer"]
    for name in CASES:
        assert_one_writer(name, found[name], found["straight"], found["longer"])
