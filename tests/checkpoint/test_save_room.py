"""The room for the first checkpoint is touched beforehand: only where it matters, and out of nobody's way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from trainwright import Trainer, TrainingArguments
from trainwright.checkpoint import save_room
from trainwright.checkpoint.save_room import RoomToucher, there_is_room
from trainwright.core.main_memory import available_memory
from trainwright.training import capture
from trainwright.training import save_room as wanted


def test_memory_that_is_short_is_left_alone() -> None:
    assert there_is_room(2**20, lambda: 2**32)
    assert not there_is_room(2**31, lambda: 2**32)
    assert not there_is_room(1, lambda: None)


def test_this_system_says_what_is_left() -> None:
    free = available_memory()
    assert free is None or 0 < free < 2**50


def test_a_thread_touches_all_and_stops_when_told() -> None:
    room = torch.ones(3 * save_room._PIECE + 5, dtype=torch.uint8)
    toucher = RoomToucher([room])
    assert toucher.start()
    toucher.wait()
    assert not room[:: save_room._PAGE].any()
    stopped = RoomToucher([torch.ones(9, dtype=torch.uint8)])
    stopped._is_over.set()
    stopped.start()
    stopped.stop()
    assert stopped._rooms[0].all()


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Small models count as large ones; what is touched is noted."""
    seen: list[Any] = []

    class Noting(RoomToucher):
        def start(self) -> bool:
            seen.append(self)
            return super().start()

    for module in (capture, wanted):
        monkeypatch.setattr(module, "SMALLEST", 1)
    monkeypatch.setattr(capture, "RoomToucher", Noting)
    return seen


def train(folder: Path, **options: Any) -> Trainer:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"max_steps": 4, "save_steps": 2, "use_cpu": True, "report_to": "none", **options}
    args = TrainingArguments(str(folder), **settings)
    rows = [(torch.randn(4), torch.tensor(i % 2)) for i in range(64)]
    trainer = Trainer(nn.Linear(4, 2), args, train_dataset=rows)
    trainer.train()
    return trainer


def test_it_is_done_once_and_the_checkpoints_are_the_same(
    tmp_path: Path, touched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path / "touched")
    assert len(touched) == 1
    assert not touched[0]._thread.is_alive()
    monkeypatch.setattr(wanted, "SMALLEST", 2**60)
    train(tmp_path / "plain")
    assert len(touched) == 1
    for step in (2, 4):
        for file in ("model.safetensors", "optimizer.safetensors"):
            one, other = (load_file(tmp_path / name / f"checkpoint-{step}" / file) for name in ("touched", "plain"))
            assert one.keys() == other.keys()
            assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("options", [{"save_strategy": "no"}, {"save_steps": 1}])
def test_where_nothing_is_saved_or_at_once_nothing_is_touched(
    tmp_path: Path, touched: list[Any], options: dict[str, Any]
) -> None:
    train(tmp_path, **options)
    assert not touched


def test_where_memory_is_short_nothing_is_touched(
    tmp_path: Path, touched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "there_is_room", lambda size: False)
    train(tmp_path)
    assert not touched


def test_a_state_that_cannot_be_asked_for_is_left_to_the_save(
    tmp_path: Path, touched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> Any:
        raise RuntimeError("not now")

    monkeypatch.setattr(capture.Capture, "prepare", fails)
    train(tmp_path)
    assert (tmp_path / "checkpoint-4").is_dir()
    assert not touched
