"""Processes that are killed, hang or are asked to stop: one case of each kind, from one process that forks them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults.forking import outcomes
from tests.faults.killed_sampler import COUNT, EPOCHS
from tests.faults.test_in_between import assert_nothing_lost
from tests.faults.test_killed_workers import assert_rescued
from tests.faults.test_leaving import TERMINAL, assert_left_well
from tests.faults.test_one_writer import assert_one_writer

MET = ["two processes", "without locks, elsewhere", "killed with workers", "copied", "silent elsewhere", "forced"]
BETWEEN = ["read again", "killed in a save"]
LEFT = [
    "while the Trainer is built",
    "while resuming",
    "in the first step",
    "hang in a worker",
    "killed, with a worker in a fetch",
    TERMINAL,
]


@pytest.mark.slow
def test_nothing_is_lost_and_no_process_is_left_behind(folder: Path) -> None:
    """All cases run in `make test-full`."""
    workers = ["in the update", "in a background save"]
    found = outcomes(
        folder,
        {"killed_sampler": [], "killed_workers": workers, "leaving": LEFT, "one_writer": MET, "in_between": BETWEEN},
    )
    check_samples(found["killed_sampler"])
    for name in workers:
        assert_rescued(name, found["killed_workers"][name])
    writers = found["one_writer"]
    for name in MET:
        assert_one_writer(name, writers[name], writers["straight"], writers["longer"])
    for name in BETWEEN:
        assert_nothing_lost(name, found["in_between"][name])
    for name in LEFT:
        assert_left_well(name, found["leaving"][name], found["leaving"]["straight"])


def check_samples(found: dict[str, Any]) -> None:
    """24 samples, a sampler and a model with generators of their own, SIGKILL in the second epoch."""
    assert found["code"] == -9
    assert len(found["first"]) == 9
    # Step 8 was saved: what the killed process did after it is done again.
    batches = found["first"][:8] + found["second"]
    epochs = [[row for batch in batches[start : start + 6] for row in batch] for start in range(0, len(batches), 6)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(COUNT))] * EPOCHS
    assert epochs[0] != epochs[1] != epochs[2]
    assert found["second"][0] == found["first"][8]
    assert found["ends"][0] == found["ends"][1]
