"""What a step costs in Python, as a number that does not depend on the machine; the time is in `bench/overhead.py`."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

import trainwright
from bench.overhead import Rows
from bench.overhead import trainwright as train

PACKAGE = str(Path(trainwright.__file__).parent)
#: Calls of our own functions, and calls that they make, in a step of a tiny model: with everything off, and with the
#: defaults. Lower them when they become fewer; a change that needs more has to be worth it.
MOST = {False: 154, True: 162}


def calls_per_step(defaults: bool, steps: int = 120) -> float:
    """Averaged over the second half of a short run; whatever torch does inside is not counted."""
    seen, marks = itertools.count(), list[int]()

    def count(frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename.startswith(PACKAGE):
            next(seen)

    sys.setprofile(count)
    try:
        train(Rows(steps), steps, defaults, lambda: marks.append(next(seen)))
    finally:
        sys.setprofile(None)
    half = len(marks) // 2
    return (marks[-1] - marks[half]) / (len(marks) - 1 - half)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("defaults", [False, True])
def test_a_step_makes_no_more_calls_than_it_did(defaults: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert round(calls_per_step(defaults)) <= MOST[defaults]
