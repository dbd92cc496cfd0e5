"""A run's folder may be anybody's: what lies where a draft goes is not waited for, and no draft stays behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainwright.checkpoint.durable import discard
from trainwright.core.files import draft_of, replacing


def test_a_pipe_in_the_place_of_a_folder_is_removed(tmp_path: Path) -> None:
    pipe = tmp_path / ".checkpoint-2.writing"
    os.mkfifo(pipe)
    discard(pipe)
    assert not pipe.exists()


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    with pytest.raises(OSError, match="full"), replacing(path) as file:  # noqa: PT012
        file.write(b"half")
        raise OSError("the disk is full")
    assert (path.read_text(), draft_of(path).exists()) == ("old", False)
