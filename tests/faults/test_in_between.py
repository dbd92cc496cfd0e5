"""Ended while something was in flight: what was saved before is all there. Most run in ``test_processes.py`` too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults.forking import outcomes
from tests.faults.in_between import CASES


def assert_nothing_lost(name: str, found: dict[str, Any]) -> None:
    if name == "killed in a save":
        # Step 6 was being saved when step 8 was done: one saving interval, and the steps that a save takes.
        assert found["there"] == [".checkpoint-6.writing", "checkpoint-3"]
        assert found["first"] == 3
        assert found["end"] == found["straight"]
        return
    code = 130 if "Ctrl-C" in name else 75
    assert found["code"] == code
    # Reading on would have taken a minute, and the deadline would have come after 20 seconds.
    assert found["seconds"] < 10
    assert found["untouched"]
    assert (found["marker"]["checkpoint"], found["marker"]["code"]) == ("checkpoint-6", code)
    assert "checkpoint-6 is as it was" in found["said"]
    assert found["is_equal"]


@pytest.mark.full
def test_what_was_saved_before_is_all_there(folder: Path) -> None:
    found = outcomes(folder, {"in_between": list(CASES)})["in_between"]
    for name in CASES:
        assert_nothing_lost(name, found[name])
