"""Statistics reach every writer, and what earlier runs wrote stays."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.compat.marlin_modules import Images, build
from trainwright.compat.pymarlin import BasicStats, StatInitArguments, Writer, WriterInitArguments
from trainwright.compat.pymarlin.core.data_interface import DataInterface, DataProcessor
from trainwright.compat.pymarlin.utils.stats import global_stats
from trainwright.compat.pymarlin.utils.writer import Stdout, build_writer
from trainwright.compat.pymarlin.utils.writer.tensorboard import Tensorboard
from trainwright.config.warnings import TrainwrightWarning


class Notes(Writer):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[Any, ...]] = []

    def log_scalar(self, k: str, v: Any, step: int) -> None:
        self.told.append(("scalar", k, v, step))

    def log_multi(self, k: str, v: dict[str, Any], step: int) -> None:
        self.told.append(("multi", k, v, step))

    def log_model(self, flat_weights: dict[str, Any], flat_grads: dict[str, Any], step: int) -> None:
        self.told.append(("model", sorted(flat_weights), sorted(flat_grads), step))

    def log_image(self, k: str, v: Any, step: int, dataformats: str = "HW") -> None:
        self.told.append(("image", k, dataformats, step))

    def log_pr_curve(self, k: str, preds: Any, labels: Any, step: int) -> None:
        self.told.append(("pr", k, step))

    def log_histogram(self, param_name: str, vals: Any, step: int) -> None:
        self.told.append(("histogram", param_name, len(vals), step))

    def log_embedding(self, tag: str, mat: Any, labels: Any, step: int) -> None:
        self.told.append(("embedding", tag, step))


def test_short_and_long() -> None:
    notes = Notes()
    stats = BasicStats(StatInitArguments(log_steps=2), [notes])
    stats.update("loss", 1.0, frequent=True)
    stats.update_multi("parts", {"a": 1}, frequent=True)
    stats.update("accuracy", 0.5)
    stats.log_stats(1)
    assert notes.told == []
    stats.log_stats(2)
    assert notes.told == [("scalar", "loss", 1.0, 2), ("multi", "parts", {"a": 1}, 2)]
    stats.log_stats(4)
    stats.log_long_stats(4)
    stats.log_long_stats(5)
    assert notes.told[2:] == [("scalar", "accuracy", 0.5, 4)]


def test_pictures_curves_and_models() -> None:
    notes = Notes()
    stats = BasicStats(StatInitArguments(), [notes])
    stats.update_image("picture", np.zeros((2, 2)))
    stats.update_pr("curve", torch.rand(3), torch.tensor([0, 1, 1]))
    stats.update_histogram("numbers", torch.ones(2))
    stats.update_histogram("numbers", torch.ones(3), extend=True)
    stats.update_embedding("points", torch.ones(2, 2), [0, 1])
    stats.log_long_stats(1)
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    stats.log_model(5, model)
    stats.log_model(5, model, force=True)
    assert notes.told == [
        ("image", "picture", "HW", 1),
        ("pr", "curve", 1),
        ("histogram", "numbers", 5, 1),
        ("embedding", "points", 1),
        ("model", ["weight"], ["weight"], 5),
    ]


def test_a_training_tells_its_writers(tmp_path: Path) -> None:
    notes = Notes()
    run = build(Images(), tmp_path, epochs=1, writers=[notes], stats_args=StatInitArguments(log_steps=2))
    run.train()
    told = [(kind, name, step) for kind, name, _, step in notes.told]
    assert told == [
        ("scalar", "epoch", 2),
        ("scalar", "loss", 2),
        ("scalar", "loss", 4),
        ("scalar", "accuracy/all", 4),
        ("scalar", "accuracy/few", 4),
    ]
    global_stats.update("later", 1)
    assert run.stats.scalars_long == {"later": 1}


def test_two_trainers_have_statistics_of_their_own(tmp_path: Path) -> None:
    first, second = Notes(), Notes()
    one = build(Images(), tmp_path / "one", epochs=1, writers=[first])
    two = build(Images(), tmp_path / "two", epochs=1, writers=[second])
    one.train()
    assert second.told == []
    two.train()
    assert first.told == second.told


def test_tensorboard_deletes_nothing(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "precious.txt").write_text("keep me")
    for _ in range(2):
        build(Images(), tmp_path, epochs=1, writers=["tensorboard"], checkpointer=None).train()
        (tmp_path / "checkpoints/model_0.safetensors").unlink()
    assert (logs / "precious.txt").read_text() == "keep me"
    # What the Trainer itself notes of a run has a folder for each run too.
    assert all((logs / f"trainwright/run-{number}/metrics.jsonl").stat().st_size for number in (1, 2))
    for run in ("run-1", "run-2"):
        events: Any = EventAccumulator(str(logs / run))
        events.Reload()
        assert "accuracy/all" in events.Tags()["scalars"]
        assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4]


def test_everything_tensorboard_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARENT", str(tmp_path))
    writer = Tensorboard(WriterInitArguments(tb_logpath_parent_env="PARENT", tb_log_hist_steps=5))
    assert writer.log_dir == tmp_path / "logs/run-1"
    stats = BasicStats(StatInitArguments(), [writer])
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    stats.update_multi("parts", {"a": 1.0})
    stats.update_image("picture", np.zeros((2, 2)))
    stats.update_pr("curve", torch.rand(3), torch.tensor([0, 1, 1]))
    stats.update_histogram("numbers", torch.ones(2))
    stats.update_histogram("bad", torch.tensor([float("nan")]))
    stats.log_long_stats(5)
    stats.log_model(5, model, force=True)
    stats.log_args({"epochs": 3})
    stats.log_graph(model, "cpu")
    stats.finish()
    assert any(path.stat().st_size > 500 for path in writer.log_dir.glob("events*"))


def test_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    stats = BasicStats(StatInitArguments(), [Stdout(WriterInitArguments(model_log_level="DEBUG"))])
    stats.update("loss", 0.25, frequent=True)
    stats.log_stats(3)
    stats.log_model(3, nn.Linear(1, 1), force=True)
    out = capsys.readouterr().out
    assert "step = 3, loss : 0.25" in out
    assert "weight : weight_norm" in out


def test_writers_by_name() -> None:
    with pytest.warns(TrainwrightWarning, match="aml"):
        assert build_writer("aml", WriterInitArguments()) is None
    with pytest.raises(ValueError, match="there are stdout, tensorboard, aml"):
        build_writer("paper", WriterInitArguments())


def test_system_statistics_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psutil")
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it slept"))
    notes = Notes()
    BasicStats(StatInitArguments(update_system_stats=True), [notes]).log_stats(1)
    assert {name for _, name, _, _ in notes.told} >= {"system/CPU/pct", "system/RAM/memory_used_pct"}


class Doubler(DataProcessor):
    def process(self, *args: Any) -> list[int]:
        number, factor = args
        return [number * factor]


class Numbers(DataInterface):
    def get_train_dataset(self, *args: Any, **kwargs: Any) -> list[int]:
        return self.multi_process_data(Doubler(), [1, 2, 3], 2)

    def get_val_dataset(self, *args: Any, **kwargs: Any) -> list[int]:
        return self.process_data(Doubler(), 4, 2)


def test_data_interface() -> None:
    numbers = Numbers()
    assert numbers.get_train_dataset() == [2, 4, 6]
    assert numbers.get_val_dataset() == [8]
    with pytest.raises(ValueError, match="needs a list"):
        numbers.multi_process_data(Doubler(), 1, 2)
