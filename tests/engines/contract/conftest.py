"""The engine under test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines.contract.engines import ENGINES
from tests.engines.graph.torch_framework import TorchFramework
from trainwright.config import probe
from trainwright.training import engine_choice


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What ``TrainingArguments(engine=...)`` is given."""
    if request.param != "seam":
        yield request.param
        return
    monkeypatch.setattr(engine_choice, "framework_for", _torch_behind_the_seam)
    monkeypatch.setitem(probe._PROBES, "mindspore", probe._PROBES["torch"])
    probe._load.cache_clear()
    yield "mindspore"
    probe._load.cache_clear()


def _torch_behind_the_seam(args: Any) -> TorchFramework:
    return TorchFramework()
