"""Packages of services find no account and no home directory of anybody's, and nobody to ask."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

_SERVICES = ("WANDB_", "COMET_", "AIM_", "MLFLOW_", "CLEARML_", "DVC", "TRACKIO_")


@pytest.fixture(autouse=True)
def nobody_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(_SERVICES)]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("NETRC", raising=False)
    # What is read from here is an end of file: a question would be an error.
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115
