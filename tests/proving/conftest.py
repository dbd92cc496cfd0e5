"""What compiles takes longer than everything else, and has a test of its own."""

from __future__ import annotations

import pytest

from trainwright.proving import prove
from trainwright.proving.stage import Stage
from trainwright.proving.steps import Attempt, not_tried


@pytest.fixture(autouse=True)
def _nothing_is_compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def left_out(stage: Stage) -> Attempt:
        return Attempt("acceleration: blocks", lambda: not_tried("acceleration: blocks", "a test leaves it out"), 0)

    if request.node.get_closest_marker("full") is None:
        monkeypatch.setattr(prove, "accelerated_blocks", left_out)
