"""Models and files that several tests read and none changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multimodal import tiny


@pytest.fixture(scope="session")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speech")
    tiny.wav2vec(folder / "model")
    tiny.sounds(folder / "data", 12)
    return folder


@pytest.fixture(scope="session")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seen")
    tiny.clip(folder / "model")
    tiny.pictures(folder / "data", 24)
    return folder
