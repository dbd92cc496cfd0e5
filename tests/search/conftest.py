"""Small sweeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainwright.search.results import SweepResult
from trainwright.search.sweep import sweep

pytest.importorskip("optuna")

SPACE = {
    "training.learning_rate": {"log_range": [1e-4, 1e-1]},
    "model.options.width": {"range": [4, 32], "step": 4},
}


@pytest.fixture
def described(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """An experiment on a few digits, with what its search says."""

    def make(name: str = "tiny", training: dict[str, Any] | None = None, **search: Any) -> dict[str, Any]:
        return {
            "name": name,
            "model": {"name": "mlp", "options": {"layers": 1}},
            "data": {"train": "digits", "limit_train": 96, "limit_eval": 64},
            "training": {"num_train_epochs": 3, "output_dir": str(tmp_path / name), **(training or {})},
            "search": {"space": SPACE, "trials": 5, **search},
        }

    return make


@pytest.fixture
def swept(described: Callable[..., dict[str, Any]]) -> Callable[..., SweepResult]:
    def run(name: str = "tiny", options: dict[str, Any] | None = None, **search: Any) -> SweepResult:
        more: dict[str, Any] = {"say": lambda line: None, **(options or {})}
        return sweep(described(name, **search), **more)

    return run
