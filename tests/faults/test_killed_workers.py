"""A loader's worker that is killed costs no finished step, whatever the main process is doing at that moment.

Those cases in which nothing was rescued before are in ``test_processes.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults.forking import outcomes
from tests.faults.killed_workers import CASES, STEP


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
    if name != "in a background save" and not name.startswith("at random"):
        assert found["saved"][-1] in {f"checkpoint-{step}" for step in range(STEP - 1, STEP + 2)}


@pytest.mark.full
@pytest.mark.parametrize(
    "words", ["in ", "before ", "after ", "while", "as ", "persistent", "spawned", "both", "at random"]
)
def test_the_last_boundary_is_rescued_at_every_moment(words: str, folder: Path) -> None:
    names = [name for name in CASES if name.startswith(words)]
    for name, found in outcomes(folder, {"killed_workers": names})["killed_workers"].items():
        assert_rescued(name, found)
