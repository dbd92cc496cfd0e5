"""Checkpoint folders: written whole or not at all, verified, let go in the right order."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.forging import forge
from trainwright import get_last_checkpoint
from trainwright.checkpoint.directory import checkpoint_path, list_checkpoints, rotate, sweep
from trainwright.checkpoint.durable import FileFacts, aside_of, doomed_of, staging_of
from trainwright.checkpoint.identity import Owner, RunIdentity
from trainwright.checkpoint.manifest import problems_of, write_manifest
from trainwright.checkpoint.saver import SaveJob, Saver
from trainwright.core.events import RunEvents

OWNER = Owner(RunIdentity.new())
STATE = '{"global_step": 1, "log_history": []}'


def write_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("words")


def save(run: Path, step: int, text: str = STATE, saver: Saver | None = None) -> None:
    job = SaveJob(
        checkpoint_path(run, step),
        step,
        fill=write_tokenizer,
        tensors={"model.safetensors": lambda: [b"weights", b" of step %d" % step]},
        texts={"trainer_state.json": lambda: text},
    )
    (saver or Saver(RunEvents())).save(job, background=False)


def make(run: Path, *steps: int) -> None:
    for step in steps:
        save(run, step)


def steps_in(run: Path) -> list[int]:
    return [int(path.name.split("-")[1]) for path in list_checkpoints(run)]


def test_order_is_by_step_and_foreign_folders_do_not_count(tmp_path: Path) -> None:
    make(tmp_path, 100, 20, 3)
    (tmp_path / "checkpoint-999").mkdir()
    (tmp_path / "checkpoint-999/trainer_state.json").write_text("{}")
    (tmp_path / "checkpoint-final").mkdir()
    (tmp_path / "checkpoint-50").write_text("a file")
    os.utime(tmp_path / "checkpoint-3")
    assert steps_in(tmp_path) == [3, 20, 100]
    assert get_last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-100")
    assert get_last_checkpoint(tmp_path / "nowhere") is None


def test_every_file_is_in_the_manifest_also_what_others_wrote(tmp_path: Path) -> None:
    make(tmp_path, 5)
    folder = tmp_path / "checkpoint-5"
    assert problems_of(folder) == []
    (folder / "extra.txt").write_text("somebody's note")
    assert problems_of(folder) == []
    (folder / "tokenizer.json").write_text("other words")
    (folder / "trainer_state.json").unlink()
    (folder / "model.safetensors").write_bytes(b"Weights of step 5")
    assert problems_of(folder) == [
        "model.safetensors has other contents than were written (its hash differs)",
        "tokenizer.json has 11 bytes instead of 5",
        "trainer_state.json is missing",
    ]


def test_the_newest_good_one_is_used_and_the_damaged_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path, 1, 2, 3)
    (tmp_path / "checkpoint-3/model.safetensors").write_bytes(b"torn")
    (tmp_path / "checkpoint-2/manifest.json").write_text("{")
    assert get_last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-1")
    assert "checkpoint-3 is damaged: model.safetensors has 4 bytes" in caplog.text
    assert "checkpoint-2 is damaged: manifest.json cannot be read" in caplog.text


def test_a_manifest_cannot_point_outside(tmp_path: Path) -> None:
    make(tmp_path, 1)
    folder = tmp_path / "checkpoint-1"
    (tmp_path / "secret").write_text("x")
    for name in ("../secret", "/etc/passwd", "a/../../secret", "..\\secret", "", "a//b", "./model.safetensors"):
        facts = FileFacts(1, "0" * 64)
        with pytest.raises(ValueError, match="cannot hold a file named"):
            write_manifest(folder, {name: facts}, 1)
        forge(folder, files={name: facts._asdict()})
        assert "not a file name of ours" in problems_of(folder)[0]


def test_a_write_that_fails_leaves_nothing_and_an_old_one_untouched(tmp_path: Path) -> None:
    make(tmp_path, 5)
    events = RunEvents(tmp_path)
    for step in (5, 6):
        saver = Saver(events)

        def breaks() -> str:
            raise OSError(28, "No space left on device")

        job = SaveJob(checkpoint_path(tmp_path, step), step, lambda folder: None, texts={"trainer_state.json": breaks})
        saver.save(job, background=True)
        saver.wait()
        assert saver.failed_step == step
    assert [event["kind"] for event in events.recorded] == ["save_failed", "save_failed"]
    assert "the disk is full" in events.recorded[0]["message"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-5", "events.jsonl"]
    assert problems_of(tmp_path / "checkpoint-5") == []


def test_a_passing_fault_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainwright.checkpoint.saver._WAITS", (0.0, 0.0))
    calls = []

    def at_third() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise OSError(5, "Input/output error")
        return STATE

    saver = Saver(RunEvents())
    saver.save(SaveJob(tmp_path / "checkpoint-1", 1, lambda folder: None, texts={"a.json": at_third}), background=False)
    assert saver.failed_step is None
    assert problems_of(tmp_path / "checkpoint-1") == []


def test_a_slow_disk_is_waited_for_once_and_not_for_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files and their folder are forced out at the same time, then the name."""
    # Three files, the manifest and the folder: each waits here until the others are here too.
    together = threading.Barrier(5, timeout=20)
    calls: list[int] = []

    class SlowDisk:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def fsync(self, descriptor: int) -> None:
            calls.append(descriptor)
            if len(calls) <= 5:
                together.wait()
            os.fsync(descriptor)

    monkeypatch.setattr("trainwright.core.fsync.os", SlowDisk())
    make(tmp_path, 5)
    assert problems_of(tmp_path / "checkpoint-5") == []
    assert len(calls) == 6


def test_the_same_step_may_be_saved_again(tmp_path: Path) -> None:
    make(tmp_path, 5)
    save(tmp_path, 5, f"{STATE} ")
    assert (tmp_path / "checkpoint-5/trainer_state.json").read_text() == f"{STATE} "
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]


def test_what_a_killed_run_left_is_cleared_and_a_good_one_put_back(tmp_path: Path) -> None:
    make(tmp_path, 1, 2, 3)
    os.rename(tmp_path / "checkpoint-1", doomed_of(tmp_path / "checkpoint-1"))
    os.rename(tmp_path / "checkpoint-3", aside_of(tmp_path / "checkpoint-3"))
    staging_of(tmp_path / "checkpoint-3").mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    staging_of(tmp_path / "checkpoint-9").symlink_to(outside)
    (tmp_path / ".checkpoint-7.writing.txt").write_text("not ours")
    assert len(sweep(tmp_path)) == 4
    assert steps_in(tmp_path) == [2, 3]
    assert problems_of(tmp_path / "checkpoint-3") == []
    assert (outside / "precious").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".checkpoint-7.writing.txt",
        "checkpoint-2",
        "checkpoint-3",
        "outside",
    ]


@pytest.mark.slow
@given(
    steps=st.sets(st.integers(1, 200), min_size=1, max_size=8),
    limit=st.integers(1, 6),
    written=st.integers(0, 7),
    best=st.none() | st.integers(0, 7),
    keep_every=st.none() | st.integers(2, 50),
)
def test_rotation_keeps_what_it_must(
    tmp_path_factory: pytest.TempPathFactory,
    steps: set[int],
    limit: int,
    written: int,
    best: int | None,
    keep_every: int | None,
) -> None:
    """The one just written (also where a higher step is left over from another run), the best, every n-th."""
    run = tmp_path_factory.mktemp("run")
    for step in steps:
        folder = checkpoint_path(run, step)
        folder.mkdir()
        write_manifest(folder, {}, step, OWNER.run)
    (run / "checkpoint-1000").mkdir()
    ordered = sorted(steps)
    pinned = {ordered[pick % len(ordered)] for pick in (written, best) if pick is not None}
    rotate(run, OWNER, limit, *(checkpoint_path(run, step) for step in pinned), None, keep_every=keep_every)
    kept = steps_in(run)
    for_good = {step for step in ordered if keep_every and step % keep_every == 0}
    assert pinned | for_good <= set(kept)
    assert (run / "checkpoint-1000").is_dir()
    counted = [step for step in ordered if step not in for_good]
    assert len([s for s in kept if s in counted]) == min(len(counted), max(limit, len(pinned - for_good)))
    others = [step for step in kept if step in counted and step not in pinned]
    rest = [step for step in counted if step not in pinned]
    assert others == rest[len(rest) - len(others) :]


def test_no_limit_lets_nothing_go(tmp_path: Path) -> None:
    make(tmp_path, 1, 2, 3)
    assert rotate(tmp_path, OWNER, None) == []
    assert steps_in(tmp_path) == [1, 2, 3]
