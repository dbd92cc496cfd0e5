"""A PyMarlin run that is stopped, wherever that is, goes on as if it had not been."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.compat.marlin_modules import KINDS, Images, Texts, build, fingerprint
from trainwright import Preempted
from trainwright.compat.pymarlin import AbstractCheckpointer, Checkpoint, DefaultCheckpointerArguments, Writer
from trainwright.core.errors import StopRequested

pytestmark = pytest.mark.slow


def straight(kind: str, folder: Path) -> tuple[str, Any]:
    run = build(KINDS[kind](), folder / "straight")
    run.train()
    return fingerprint(run), run.module


def stop_in(module: Any, hook: str, at: int) -> None:
    """Let the module ask for a stop in ``hook``, as a signal would, the ``at``-th time it is called."""
    real, calls = getattr(module, hook), []

    def hooked(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == at:
            raise StopRequested("the test")
        return real(*args, **kwargs)

    object.__setattr__(module, hook, hooked)


class StopsAt(Writer):
    """Asks for a stop right after a step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def log_scalar(self, k: str, v: Any, step: int) -> None:
        if step == self.step:
            raise StopRequested("the test")


def check_resumed(kind: str, wanted: str, whole: Any, folder: Path) -> None:
    resumed = build(KINDS[kind](), folder)
    resumed.train()
    assert fingerprint(resumed) == wanted
    if isinstance(whole, Texts):
        assert resumed.module.words_seen == whole.words_seen
        assert resumed.module.epochs_ended == whole.epochs_ended
        assert resumed.module.accuracy == whole.accuracy
    else:
        # Epochs that ended after the resume have the outputs of their whole epoch.
        ends = [[call for call in m.calls if call[0] == "end epoch"] for m in (whole, resumed.module)]
        assert ends[1] == ends[0][-len(ends[1]) :]


@pytest.mark.parametrize("kind", ["images", "texts"])
@pytest.mark.parametrize("step", [1, 4, 6, 12])
def test_stopped_after_a_step_it_goes_on_bit_equal(kind: str, step: int, tmp_path: Path) -> None:
    wanted, whole = straight(kind, tmp_path)
    with pytest.raises(Preempted):
        build(KINDS[kind](), tmp_path, writers=[StopsAt(step)]).train()
    check_resumed(kind, wanted, whole, tmp_path)


@pytest.mark.parametrize("kind", ["images", "texts"])
@pytest.mark.parametrize("at", [2, 7])
def test_stopped_in_a_validation_it_goes_on_bit_equal(kind: str, at: int, tmp_path: Path) -> None:
    wanted, whole = straight(kind, tmp_path)
    module = KINDS[kind]()
    stop_in(module, "val_step", at)
    with pytest.raises(Preempted):
        build(module, tmp_path).train()
    check_resumed(kind, wanted, whole, tmp_path)


@pytest.mark.parametrize("at", [2, 14, 31])
def test_an_error_in_the_midst_of_a_step(at: int, tmp_path: Path) -> None:
    wanted, whole = straight("images", tmp_path)
    module = Images()
    stop_in(module, "train_step", at)
    with pytest.raises(Preempted):
        build(module, tmp_path).train()
    check_resumed("images", wanted, whole, tmp_path)


def test_terminated_from_outside(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.compat.marlin_modules", "images", *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    process = start(str(tmp_path / "stopped"), "--slow")
    assert process.stdout is not None
    while process.stdout.readline() != "step 6\n":
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=100) == 75
    again, whole = start(str(tmp_path / "stopped")), start(str(tmp_path / "whole"))
    answers = [run.communicate(timeout=100)[0].splitlines()[-1] for run in (again, whole)]
    assert answers[0] == answers[1]


class InMemory(AbstractCheckpointer):
    """The smallest checkpointer of one's own."""

    def __init__(self) -> None:
        self.saved: list[tuple[Checkpoint, int, bool]] = []
        self.models: list[tuple[dict[str, Any], int]] = []

    def save(self, checkpoint_state: Checkpoint, index: int, force: bool = False) -> None:
        self.saved.append((copy.deepcopy(checkpoint_state), index, force))

    def save_model(self, checkpoint_state: dict[str, Any], index: int) -> None:
        self.models.append((checkpoint_state, index))

    def load(self) -> Checkpoint:
        return self.saved[-1][0] if self.saved else Checkpoint()


def test_through_a_checkpointer_of_ones_own(tmp_path: Path) -> None:
    wanted, _ = straight("images", tmp_path)
    checkpointer = InMemory()
    module = Images()
    # In the second step of epoch 1.
    stop_in(module, "train_step", 16)
    with pytest.raises(Preempted, match="holds everything"):
        build(module, tmp_path, checkpointer).train()
    assert [(index, force) for _, index, force in checkpointer.saved] == [(0, False), (1, True)]
    assert checkpointer.saved[-1][0].trainer_state == {"last_epoch": 0}
    resumed = build(Images(), tmp_path, checkpointer)
    assert resumed.last_epoch == 0
    assert resumed.global_steps_finished == 5
    resumed.train()
    assert fingerprint(resumed) == wanted
    assert [(index, force) for _, index, force in checkpointer.saved[2:]] == [(1, False), (2, True)]
    assert [index for _, index in checkpointer.models] == [2]
    assert torch.equal(checkpointer.models[0][0]["net.0.weight"], resumed.module.state_dict()["net.0.weight"])


def test_an_interruption_is_saved_whatever_the_period(tmp_path: Path) -> None:
    kept = str(tmp_path / "checkpoints")
    settings = DefaultCheckpointerArguments(save_dir=kept, model_state_save_dir=kept, load_dir=kept, period=3)
    module = Images()
    # Before the first step of epoch 2: epoch 1 is finished, and not one that the period keeps.
    stop_in(module, "on_begin_train_epoch", 3)
    with pytest.raises(Preempted):
        build(module, tmp_path, checkpointer_args=settings).train()
    assert build(Images(), tmp_path, checkpointer_args=settings).last_epoch == 1


def test_optimizers_that_begin_anew(tmp_path: Path) -> None:
    build(Images(), tmp_path, epochs=1).train()
    run = build(Images(), tmp_path, epochs=3, reset_optimizers_schedulers=True)
    assert run.last_epoch == 0
    # Made for the two epochs that are left.
    assert run.module.calls[-1] == ("optimizers", 4, 2)
    assert run.optimizers[0].state_dict()["state"] == {}
    run.train()
    assert run.global_steps_finished == 12
    assert next(iter(run.optimizers[0].state_dict()["state"].values()))["step"].item() == 8
    assert run.schedulers[0].last_epoch == 8


def test_a_schedule_made_for_more_epochs_goes_on(tmp_path: Path) -> None:
    """The original takes the checkpoint's number of steps, and torch then refuses the step after its last."""
    build(Images(), tmp_path, epochs=1).train()
    run = build(Images(), tmp_path, epochs=2)
    run.train()
    assert [call[0] for call in run.module.calls].count("end") == 1


def test_only_the_epochs_that_are_left(tmp_path: Path) -> None:
    build(Images(), tmp_path, epochs=2).train()
    run = build(Images(), tmp_path, epochs=2)
    run.train()
    assert [call[0] for call in run.module.calls] == ["optimizers", "end"]


def test_a_checkpoint_of_an_epochs_end_alone_goes_on_with_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = InMemory()
    state = {name: torch.full_like(value, 0.5) for name, value in Images().state_dict().items()}
    counts = {"global_step_completed": 8, "batches_completed": 22}
    checkpointer.saved.append((Checkpoint(state, {"last_epoch": 1}, counts), 1, True))
    run = build(Images(), tmp_path, checkpointer, epochs=4)
    assert torch.equal(run.module.state_dict()["net.0.weight"], state["net.0.weight"])
    run.train()
    assert "goes on with the next epoch" in caplog.text
    assert [call[:3] for call in run.module.calls if call[0] == "begin epoch"] == [
        ("begin epoch", 8, 2),
        ("begin epoch", 12, 3),
    ]
    assert run.global_steps_finished == 16
    # What it has saved itself is exact again, and counts on.
    again = build(Images(), tmp_path, checkpointer, epochs=5)
    again.train()
    assert [call[:3] for call in again.module.calls if call[0] == "begin epoch"] == [("begin epoch", 16, 4)]
    assert again.global_steps_finished == 20
    nothing_left = build(Images(), tmp_path, checkpointer, epochs=5)
    nothing_left.train()
    assert nothing_left.global_steps_finished == 20
