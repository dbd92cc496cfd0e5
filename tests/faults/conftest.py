"""A place for runs that are killed again and again."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a place: what is tested is the order of operations, not how long fsync takes."""
    memory = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="trainwright-", dir=memory if memory.is_dir() else None))
    yield place
    shutil.rmtree(place)
