"""PyMarlin's checkpointer: which files there are, which is loaded, what is said where none can be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.compat.marlin_modules import Images, build
from trainwright.compat.pymarlin import Checkpoint, DefaultCheckpointer, DefaultCheckpointerArguments
from trainwright.compat.pymarlin.utils.checkpointer.checkpoint_utils import BestCheckpointer, BestCheckpointerArguments
from trainwright.config.warnings import TrainwrightWarning


def make(folder: Path, **more: Any) -> DefaultCheckpointer:
    kept = str(folder)
    return DefaultCheckpointer(DefaultCheckpointerArguments(save_dir=kept, model_state_save_dir=kept, **more))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def state(number: int) -> Checkpoint:
    return Checkpoint({"weight": torch.full((2,), float(number))}, {"last_epoch": number}, {"batches_completed": 3})


def test_files_and_periods(tmp_path: Path) -> None:
    checkpointer = make(tmp_path, period=3, file_prefix="run")
    for index in range(5):
        checkpointer.save(state(index), index, force=index == 4)
    assert names(tmp_path) == ["run_0.safetensors", "run_3.safetensors", "run_4.safetensors"]
    assert checkpointer.save_model({"weight": torch.ones(1)}, 4) == str(tmp_path / "run_model_4.safetensors")


def test_nothing_is_saved_without_leave(tmp_path: Path) -> None:
    checkpointer = make(tmp_path, checkpoint=False)
    assert checkpointer.save(state(0), 0, force=True) is None
    assert checkpointer.save_model({}, 0) is None
    assert names(tmp_path) == []


@pytest.mark.parametrize(("epochs", "files"), [(3, 3), (4, 4)])
def test_a_file_an_epoch_and_one_for_the_model(epochs: int, files: int, tmp_path: Path) -> None:
    build(Images(), tmp_path, epochs=epochs).train()
    found = names(tmp_path / "checkpoints")
    assert [name for name in found if "model_model" not in name] == [f"model_{i}.safetensors" for i in range(files)]
    assert [name for name in found if "model_model" in name] == [f"model_model_{epochs - 1}.safetensors"]


def test_the_newest_full_checkpoint_is_loaded_never_a_model(tmp_path: Path) -> None:
    checkpointer = make(tmp_path, load_dir=str(tmp_path))
    for index in (2, 9, 10):
        checkpointer.save(state(index), index)
    checkpointer.save_model({"net.weight": torch.ones(1)}, 10)
    checkpointer.save_model({"net.weight": torch.ones(1)}, 99)
    assert checkpointer.load().trainer_state == {"last_epoch": 10}
    assert DefaultCheckpointer.get_latest_file(str(tmp_path), "model") == str(tmp_path / "model_10.safetensors")
    assert DefaultCheckpointer.get_latest_file(str(tmp_path), "other") == ""


def test_a_model_under_a_checkpoints_name_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make(tmp_path, file_prefix="run").save_model({"net.weight": torch.ones(1)}, 7)
    checkpointer = make(tmp_path, file_prefix="run_model", load_dir=str(tmp_path))
    checkpointer.save(state(2), 2)
    assert checkpointer.load().trainer_state == {"last_epoch": 2}
    assert "a finished model only" in caplog.text


def test_damaged_ones_are_named_and_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpointer = make(tmp_path, load_dir=str(tmp_path))
    for index in (0, 1):
        checkpointer.save(state(index), index)
    newest = tmp_path / "model_1.safetensors"
    newest.write_bytes(newest.read_bytes()[:-3])
    assert checkpointer.load().trainer_state == {"last_epoch": 0}
    assert "model_1.safetensors is damaged" in caplog.text
    (tmp_path / "model_0.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"Every checkpoint .* is damaged"):
        checkpointer.load()


@pytest.mark.parametrize("load_dir", [None, ""])
def test_no_load_dir_loads_nothing(load_dir: str | None, tmp_path: Path) -> None:
    checkpointer = make(tmp_path, load_dir=load_dir)
    checkpointer.save(state(0), 0)
    assert not checkpointer.load()


def test_a_load_dir_with_nothing_in_it_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not make(tmp_path, load_dir=str(tmp_path / "missing")).load()
    assert "does not exist: training starts from the beginning" in caplog.text
    assert not make(tmp_path, load_dir=str(tmp_path)).load()
    assert "holds no checkpoint" in caplog.text


def test_a_named_file(tmp_path: Path) -> None:
    make(tmp_path).save(state(0), 0)
    make(tmp_path).save(state(1), 1)
    chosen = make(tmp_path, load_dir=str(tmp_path), load_filename="model_0.safetensors")
    assert chosen.load().trainer_state == {"last_epoch": 0}
    with pytest.raises(ValueError, match=r"which holds model_0\.safetensors, model_1\.safetensors"):
        make(tmp_path, load_dir=str(tmp_path), load_filename="model_7.pt").load()


def test_only_our_own_files_are_deleted_and_by_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path).save(state(0), 0)
    for other in ("notes.txt", "model_best.safetensors", "other_0.safetensors"):
        (tmp_path / other).write_text("mine")
    with monkeypatch.context() as environment:
        for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
            environment.setenv(name, value)
        make(tmp_path, delete_existing_checkpoints=True)
    assert "model_0.safetensors" in names(tmp_path)
    make(tmp_path, delete_existing_checkpoints=True)
    assert names(tmp_path) == ["model_best.safetensors", "notes.txt", "other_0.safetensors"]


def test_folders_are_those_of_the_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert DefaultCheckpointerArguments().save_dir == os.path.join(os.getcwd(), "checkpoints")
    assert DefaultCheckpointerArguments().model_state_save_dir == str(tmp_path / "checkpoints")


def test_other_extensions_are_said() -> None:
    with pytest.warns(TrainwrightWarning, match=r"file_ext='pt'.*called \.safetensors"):
        assert DefaultCheckpointerArguments(file_ext="pt").file_ext == "safetensors"
    with pytest.raises(ValueError, match="period must be at least 1"):
        DefaultCheckpointerArguments(period=0)


def test_any_state_of_tensors_and_json_comes_back(tmp_path: Path) -> None:
    whole = Checkpoint({"a": {1: (torch.ones(2), [None, "x"])}}, {"rate": float("inf")}, {})
    checkpointer = make(tmp_path, load_dir=str(tmp_path))
    checkpointer.save(whole, 0)
    loaded = checkpointer.load()
    assert loaded.module_interface_state is not None
    assert torch.equal(loaded.module_interface_state["a"][1][0], torch.ones(2))
    assert (loaded.trainer_state, loaded.trainer_backend_state) == ({"rate": float("inf")}, {})


def best(folder: Path, **more: Any) -> BestCheckpointer:
    kept = str(folder)
    settings = BestCheckpointerArguments(save_dir=kept, model_state_save_dir=kept, load_dir=kept, **more)
    return BestCheckpointer(settings)


def test_the_best_and_the_latest(tmp_path: Path) -> None:
    checkpointer = best(tmp_path, metric_name="perplexity")
    for index, value in enumerate((5.0, 3.0, 4.0)):
        checkpointer.save(Checkpoint({"perplexity": torch.tensor(value)}, {"last_epoch": index}), index)
    assert names(tmp_path) == ["model_best_checkpoint.safetensors", "model_latest_checkpoint.safetensors"]
    again = best(tmp_path, metric_name="perplexity")
    assert again.load().trainer_state == {"last_epoch": 2}
    assert again.best_metric == 3.0
    assert best(tmp_path, metric_name="perplexity", load_best=True).load().trainer_state == {"last_epoch": 1}
    every = best(tmp_path / "every", metric_name="perplexity", criteria="max", save_every_epoch=True)
    assert len(every.save(Checkpoint({"perplexity": 1.0}), 0)) == 3
    assert not best(tmp_path / "none").load()
    with pytest.raises(ValueError, match="register it as a buffer"):
        every.save(Checkpoint({}), 0)
    with pytest.raises(ValueError, match="must be 'min', 'max'"):
        BestCheckpointerArguments(criteria="least")


@pytest.mark.slow
def test_the_best_of_a_training(tmp_path: Path) -> None:
    class Judged(Images):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("error", torch.tensor(1.0))

        def on_end_val_epoch(self, global_step: int, *outputs: Any, key: str = "default") -> None:
            # The second epoch is the best.
            self.error = torch.tensor(abs(global_step - 8.0))

    build(Judged(), tmp_path, best(tmp_path / "best", metric_name="error")).train()
    resumed = build(Judged(), tmp_path, best(tmp_path / "best", metric_name="error", load_best=True))
    assert (resumed.last_epoch, resumed.global_steps_finished) == (1, 8)
    resumed.train()
    assert resumed.global_steps_finished == 12
