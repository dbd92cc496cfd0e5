"""What a step costs in Python, as a number that does not depend on the machine; the time is in `bench/overhead.py`."""

from __future__ import annotations

import pytest

from bench.overhead import calls_per_step

#: Python and C calls of a step of a tiny model, with everything off and with the defaults. Lower it when they become
#: fewer; a change that needs more has to be worth it.
MOST = {False: 438, True: 560}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("defaults", [False, True])
def test_a_step_makes_no_more_calls_than_it_did(defaults: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert round(calls_per_step("trainwright", defaults)) <= MOST[defaults]
