"""Names, arguments, flags and events that users rely on change on purpose only."""

from __future__ import annotations

import pytest

from tests.architecture.promises import HOME, PROMISES


@pytest.mark.slow
@pytest.mark.parametrize("kind", PROMISES)
def test_what_was_promised_is_there_and_what_is_new_was_written_down(kind: str) -> None:
    promised = (HOME / f"{kind}.txt").read_text(encoding="utf-8").splitlines()
    found = PROMISES[kind]()
    gone, new = sorted(set(promised) - set(found)), sorted(set(found) - set(promised))
    assert (gone, new) == ([], []), "run: python -m tests.architecture.promises, and look at what git diff shows"
