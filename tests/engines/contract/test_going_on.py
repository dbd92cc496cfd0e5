"""What every engine does alike: checkpoints, and going on from them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.engines.contract.engines import Lively, close, feature, rows, same_weights, train
from trainwright import Preempted, TrainerCallback

_OPTIONS: dict[str, Any] = {"max_steps": 6, "weight_decay": 0.01, "save_strategy": "steps", "save_steps": 2}


@feature("exact resume: bit-equal, with dropout and BatchNorm, in another process's state")
@pytest.mark.parametrize("optim", ["adamw_torch", "sgd"])
def test_resume_is_exact(optim: str, engine: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {**_OPTIONS, "optim": optim, "optim_args": "momentum=0.9" if optim == "sgd" else None}
    whole = train(tmp_path / "run", engine, Lively(), **options)
    again = train(tmp_path / "run", engine, Lively(), resume=str(tmp_path / "run" / "checkpoint-4"), **options)
    same_weights(again.weights(), whole.weights())
    assert again.logged("loss") == whole.logged("loss")
    assert again.logged("grad_norm") == whole.logged("grad_norm")


@feature("a run saved on one engine goes on with another")
def test_engines_take_over_from_each_other(engine: str, tmp_path: Path) -> None:
    expected = train(tmp_path / "torch", "torch", Lively(), **_OPTIONS)
    here = train(tmp_path / "here", engine, Lively(), **_OPTIONS)
    for start, name in ((tmp_path / "torch", engine), (tmp_path / "here", "torch")):
        went_on = train(tmp_path / "on", name, Lively(), resume=str(start / "checkpoint-2"), **_OPTIONS)
        assert close(went_on.logged("loss"), expected.logged("loss"))
        same_weights(went_on.weights(), here.weights(), 2e-4)


class Asked(TrainerCallback):
    """A scheduler wants the machine back, in the middle of a step."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            signal.raise_signal(signal.SIGTERM)


@feature("preemption: saved at the signal, and exact afterwards")
def test_preemption(engine: str, tmp_path: Path) -> None:
    options = {**_OPTIONS, "save_steps": 100}
    whole = train(tmp_path / "whole", engine, Lively(), **options)
    with pytest.raises(Preempted):
        train(tmp_path / "run", engine, Lively(), callbacks=[Asked()], **options)
    again = train(tmp_path / "run", engine, Lively(), resume=True, **options)
    same_weights(again.weights(), whole.weights())


class Fails(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            raise RuntimeError("broken")


@feature("an error saves the last step, and the model keeps what was learned")
def test_errors(engine: str, tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", engine, Lively(), rows(24), **_OPTIONS)
    with pytest.raises(RuntimeError, match="broken"):
        train(tmp_path / "run", engine, Lively(), rows(24), callbacks=[Fails()], **_OPTIONS)
    assert (tmp_path / "run" / "checkpoint-3").is_dir()
    again = train(tmp_path / "run", engine, Lively(), rows(24), resume=True, **_OPTIONS)
    same_weights(again.weights(), whole.weights())
