"""Checkpoints that go to somebody else's code: an archive, another file system."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.faults.runner import Net, rows
from trainwright import Checkpoint, NotSavedError, Preempted, Trainer, TrainerCallback, TrainingArguments
from trainwright.checkpoint.states import pack_checkpoint, pack_state, unpack_checkpoint, unpack_state
from trainwright.core.errors import StopRequested


class ZipCheckpointer:
    """Every checkpoint is a member of one archive."""

    def __init__(self, path: Path) -> None:
        self.path, self.models, self.closed = path, {}, 0

    def save(self, checkpoint: Checkpoint, step: int) -> None:
        with zipfile.ZipFile(self.path, "a") as archive:
            archive.writestr(f"{step:08d}", pack_checkpoint(checkpoint))

    def save_model(self, module_state: dict[str, Any], step: int) -> None:
        self.models[step] = module_state

    def load(self) -> Checkpoint | None:
        if self.latest() is None:
            return None
        with zipfile.ZipFile(self.path) as archive:
            return unpack_checkpoint(archive.read(f"{self.latest():08d}"))

    def latest(self) -> int | None:
        if not self.path.exists():
            return None
        with zipfile.ZipFile(self.path) as archive:
            return max(int(name) for name in archive.namelist())

    def close(self) -> None:
        self.closed += 1


class RemoteCheckpointer:
    """Files behind any fsspec address."""

    def __init__(self, address: str) -> None:
        import fsspec

        self.files, self.root = fsspec.core.url_to_fs(address)
        self.files.makedirs(self.root, exist_ok=True)

    def save(self, checkpoint: Checkpoint, step: int) -> None:
        self.files.pipe_file(f"{self.root}/{step:08d}", pack_checkpoint(checkpoint))

    def save_model(self, module_state: dict[str, Any], step: int) -> None:
        self.files.pipe_file(f"{self.root}/model", pack_state(module_state))

    def load(self) -> Checkpoint | None:
        step = self.latest()
        return None if step is None else unpack_checkpoint(self.files.cat_file(f"{self.root}/{step:08d}"))

    def latest(self) -> int | None:
        names = [name.rsplit("/", 1)[-1] for name in self.files.ls(self.root, detail=False)]
        return max((int(name) for name in names if name != "model"), default=None)

    def close(self) -> None:
        pass


class StopAt(TrainerCallback):
    """Asks for a stop in the middle of a run, as a signal would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise StopRequested("the test")


def build(args: TrainingArguments, checkpointer: Any, callbacks: list[Any] | None = None) -> Trainer:
    return Trainer(Net(), args, train_dataset=rows(), callbacks=callbacks, checkpointer=checkpointer)


@pytest.fixture
def run_args(make_args: Callable[..., TrainingArguments]) -> Callable[..., TrainingArguments]:
    def make(**more: Any) -> TrainingArguments:
        settings = {"max_steps": 11, "per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 4}
        return make_args(**settings, learning_rate=1e-2, logging_steps=2, **more)

    return make


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zip", "memory"])
def test_a_stopped_run_goes_on_bit_equal(kind: str, run_args: Callable[..., TrainingArguments], tmp_path: Path) -> None:
    def make() -> Any:
        return ZipCheckpointer(tmp_path / "run.zip") if kind == "zip" else RemoteCheckpointer(f"memory://{tmp_path}")

    straight = build(run_args(output_dir=str(tmp_path / "straight")), None)
    straight.train()
    with pytest.raises(Preempted, match="checkpoint-7 holds everything"):
        build(run_args(), make(), [StopAt(7)]).train()
    assert make().latest() == 7
    resumed = build(run_args(), make())
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 11
    for name, weight in straight.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name
    losses = [[e["loss"] for e in t.state.log_history if "loss" in e] for t in (straight, resumed)]
    assert losses[0] == losses[1]
    assert list((tmp_path / "run").glob("checkpoint-*")) == []


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_from_the_last_save(
    run_args: Callable[..., TrainingArguments], tmp_path: Path
) -> None:
    class Dies(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 10:
                # Nothing rescues a run from this: what is left is what was saved before.
                raise SystemExit(9)

    straight = build(run_args(output_dir=str(tmp_path / "straight")), None)
    straight.train()
    with pytest.raises(SystemExit):
        build(run_args(), ZipCheckpointer(tmp_path / "run.zip"), [Dies()]).train()
    assert ZipCheckpointer(tmp_path / "run.zip").latest() == 8
    resumed = build(run_args(resume="auto"), ZipCheckpointer(tmp_path / "run.zip"))
    resumed.train()
    for name, weight in straight.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name


def test_the_finished_model_and_the_end_are_told(run_args: Callable[..., TrainingArguments], tmp_path: Path) -> None:
    checkpointer = ZipCheckpointer(tmp_path / "run.zip")
    trainer = build(run_args(), checkpointer)
    trainer.train(resume_from_checkpoint="auto")
    assert list(checkpointer.models) == [11]
    assert checkpointer.closed == 1
    for name, weight in trainer.model.state_dict().items():
        assert torch.equal(checkpointer.models[11][name], weight)
    assert checkpointer.latest() == 11
    trainer.save_model(str(tmp_path / "elsewhere"))
    assert (tmp_path / "elsewhere/model.safetensors").is_file()


def test_a_checkpointer_that_fails_does_not_end_the_run(
    run_args: Callable[..., TrainingArguments], tmp_path: Path
) -> None:
    class Failing(ZipCheckpointer):
        def save(self, checkpoint: Checkpoint, step: int) -> None:
            if step == 4:
                raise RuntimeError("the network is down")
            super().save(checkpoint, step)

        def save_model(self, module_state: dict[str, Any], step: int) -> None:
            raise RuntimeError("still down")

    checkpointer = Failing(tmp_path / "run.zip")
    trainer = build(run_args(), checkpointer)
    with pytest.raises(NotSavedError, match="still down"):
        trainer.train()
    assert trainer.state.global_step == 11
    kinds = {event["kind"]: event["message"] for event in trainer._present_run().events.recorded}
    assert "the network is down" in kinds["save_failed"]
    assert "still down" in kinds["lost"]
    with zipfile.ZipFile(checkpointer.path) as archive:
        assert archive.namelist() == ["00000008", "00000011"]


def test_nothing_to_resume_from(run_args: Callable[..., TrainingArguments], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"checkpointer\.load\(\) found none"):
        build(run_args(), ZipCheckpointer(tmp_path / "run.zip")).train(resume_from_checkpoint=True)


@pytest.mark.parametrize(
    "setting",
    [{"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 4}, {"rewind_on_nonfinite": True}],
)
def test_what_needs_the_run_directory_is_refused(
    setting: dict[str, Any], run_args: Callable[..., TrainingArguments], tmp_path: Path
) -> None:
    checkpointer = ZipCheckpointer(tmp_path / "run.zip")
    with pytest.raises(ValueError, match="unset one of the two"):
        Trainer(Net(), run_args(**setting), train_dataset=rows(), eval_dataset=rows(), checkpointer=checkpointer)


def test_a_state_that_is_neither_tensor_nor_json_is_refused_when_it_is_packed() -> None:
    with pytest.raises(ValueError, match=r"checkpoint\['trainer_state'\]\['file'\] is a BytesIO"):
        pack_checkpoint(Checkpoint(trainer_state={"file": io.BytesIO()}))
    assert unpack_state(pack_state({"fine": True})) == {"fine": True}
