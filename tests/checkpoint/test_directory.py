"""Checkpoint folders: written whole or not at all, let go in the right order."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright import get_last_checkpoint
from trainwright.checkpoint.directory import checkpoint_path, list_checkpoints, rotate, write_whole


def fill(folder: Path) -> None:
    (folder / "trainer_state.json").write_text("{}")


def make(run: Path, *steps: int) -> None:
    for step in steps:
        write_whole(checkpoint_path(run, step), fill)


def steps_in(run: Path) -> list[int]:
    return [int(path.name.split("-")[1]) for path in list_checkpoints(run)]


def test_order_is_by_step_and_foreign_folders_do_not_count(tmp_path: Path) -> None:
    make(tmp_path, 100, 20, 3)
    (tmp_path / "checkpoint-999").mkdir()
    (tmp_path / "checkpoint-final").mkdir()
    (tmp_path / "checkpoint-50").write_text("a file")
    assert steps_in(tmp_path) == [3, 20, 100]
    assert get_last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-100")
    assert get_last_checkpoint(tmp_path / "nowhere") is None


def test_a_write_that_fails_leaves_nothing_and_an_old_one_untouched(tmp_path: Path) -> None:
    make(tmp_path, 5)

    def breaks(folder: Path) -> None:
        fill(folder)
        raise OSError("disk full")

    for step in (5, 6):
        with pytest.raises(OSError, match="disk full"):
            write_whole(checkpoint_path(tmp_path, step), breaks)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]
    assert steps_in(tmp_path) == [5]


def test_the_same_step_may_be_saved_again(tmp_path: Path) -> None:
    make(tmp_path, 5)

    def newer(folder: Path) -> None:
        (folder / "trainer_state.json").write_text("new")

    write_whole(checkpoint_path(tmp_path, 5), newer)
    assert (tmp_path / "checkpoint-5/trainer_state.json").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]


@given(
    steps=st.sets(st.integers(1, 200), min_size=1, max_size=8),
    limit=st.integers(1, 6),
    written=st.integers(0, 7),
    best=st.none() | st.integers(0, 7),
)
def test_rotation_keeps_the_one_just_written_and_the_best(
    tmp_path_factory: pytest.TempPathFactory, steps: set[int], limit: int, written: int, best: int | None
) -> None:
    """Also where a higher step is left over from another run in the same place."""
    run = tmp_path_factory.mktemp("run")
    make(run, *steps)
    ordered = sorted(steps)
    pinned = {ordered[pick % len(ordered)] for pick in (written, best) if pick is not None}
    rotate(run, limit, *(checkpoint_path(run, step) for step in pinned), None)
    kept = steps_in(run)
    assert pinned <= set(kept)
    assert len(kept) == min(len(ordered), max(limit, len(pinned)))
    others = [step for step in kept if step not in pinned]
    assert others == [step for step in ordered if step not in pinned][len(ordered) - len(pinned) - len(others) :]


def test_no_limit_lets_nothing_go(tmp_path: Path) -> None:
    make(tmp_path, 1, 2, 3)
    assert rotate(tmp_path, None) == []
    assert steps_in(tmp_path) == [1, 2, 3]
