"""A change of the code's form changes no bit of what it computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.old_checkpoints.bits import PREVIOUS, compare, differences
from tests.old_checkpoints.kinds import Ended
from tests.old_checkpoints.make import write


@pytest.mark.full
@pytest.mark.timeout(600)
def test_every_kind_of_run_computes_what_the_previous_release_did() -> None:
    assert differences(PREVIOUS) == []


def test_a_single_bit_shows(tmp_path: Path) -> None:
    weight = torch.tensor([1.0, -0.0])
    for name, value in (("one", weight), ("same", weight.clone()), ("other", weight.abs())):
        (tmp_path / name / "kind").mkdir(parents=True)
        write(tmp_path / name / "kind", Ended({"weight": value}, {"loss": [[1, 0.5]]}))
    assert compare(tmp_path / "one", tmp_path / "same") == []
    assert compare(tmp_path / "one", tmp_path / "other") == ["kind: weight differ"]
