"""A training is one record from its beginning to its end, and nothing of it stays in the way of what comes after."""

from __future__ import annotations

import gc
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.architecture.promises import HOME
from tests.faults import runner
from trainwright import Trainer, TrainerCallback, TrainingArguments
from trainwright.engines.torch.nonfinite import Verdict
from trainwright.training import train as training


class Net(nn.Module):
    """Dropout and running statistics, so that a place in a run shows; a row that holds a NaN makes the loss one."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 3))
        self.passes, self.fails_at = 0, fails_at

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.body(x)
        self.passes += 1
        if self.passes == self.fails_at:
            raise RuntimeError("a mistake")
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def rows(bad: int | None = None) -> list[dict[str, Tensor]]:
    found = [{"x": row["x"].clone(), "labels": row["labels"]} for row in runner.rows()]
    if bad is not None:
        found[bad]["x"][0] = torch.nan
    return found


def build(folder: Path, model: nn.Module, bad: int | None = None, **extra: Any) -> Trainer:
    settings: dict[str, Any] = {
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "save_steps": 2,
        "learning_rate": 1e-2,
        "logging_steps": 100,
        "train_sampling_strategy": "sequential",
        "max_nonfinite_steps": 1,
        "rewind_on_nonfinite": True,
        "disable_tqdm": True,
        "use_cpu": True,
        "report_to": "none",
        "resume": "auto",
    }
    return Trainer(model, TrainingArguments(str(folder), **{**settings, **extra}), train_dataset=rows(bad))


@pytest.mark.slow
def test_an_error_after_a_rewind_is_rescued_where_the_run_stands(tmp_path: Path) -> None:
    """The third batch is left out after a rewind; then a step breaks off in its middle."""
    straight = build(tmp_path / "straight", Net(), bad=9)
    straight.train()
    # Passes: two steps, the bad one, the rewind, then steps 3 and 4: the sixth pass is inside step 5.
    broken = build(tmp_path / "broken", Net(fails_at=6), bad=9)
    with pytest.raises(RuntimeError, match="a mistake"):
        broken.train()
    again = build(tmp_path / "broken", Net(), bad=9)
    again.train()
    assert again.state.global_step == straight.state.global_step
    assert runner.fingerprint(again) == runner.fingerprint(straight)


def test_what_is_known_of_the_last_step_only_at_the_end_still_rewinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where the answer may be on its way when the last step is done."""
    monkeypatch.setattr(Verdict, "is_known", lambda self: False)
    trainer = build(tmp_path, Net(), bad=20)
    trainer.train()
    assert trainer.state.global_step == 6
    assert '"kind": "rewound"' in (tmp_path / "events.jsonl").read_text()
    assert all(torch.isfinite(parameter).all() for parameter in trainer.model.parameters())


def test_a_step_by_hand_after_training_is_whole(tmp_path: Path) -> None:
    """Whatever share of a step the last micro-batch of the training had."""
    trainer = build(tmp_path, Net(), gradient_accumulation_steps=2, max_steps=2)
    trainer.train()
    batch = {"x": torch.randn(4, 6), "labels": torch.zeros(4, dtype=torch.long)}
    torch.manual_seed(1)
    loss = trainer.training_step(trainer.model, dict(batch))
    torch.manual_seed(1)
    assert float(loss) == float(trainer.model(**batch)["loss"].detach())


def test_the_page_of_the_documentation_is_the_code_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    fit = training.fit

    def noted(run: Any) -> Any:
        called.append(run)
        return fit(run)

    monkeypatch.setattr(training, "fit", noted)
    trainer = build(tmp_path, Net())
    trainer.train()
    assert called == [trainer._present_run()]


@pytest.mark.slow
def test_a_trainer_that_is_let_go_takes_its_memory_along(tmp_path: Path) -> None:
    """At once: a notebook that trains a second model should not have to hold two."""
    model = Net()
    trainer = build(tmp_path, model, save_strategy="no", resume=None, rewind_on_nonfinite=False)
    trainer.train()
    watched = weakref.ref(model)
    del model
    gc.collect()
    gc.disable()
    try:
        del trainer
        assert watched() is None
    finally:
        gc.enable()


def test_what_a_trainer_shows_can_be_set_as_before(tmp_path: Path) -> None:
    """Scripts with a loop of their own do; what is worked out at each look cannot be."""
    trainer = build(tmp_path, Net())
    worked_out = {"strategy", "micro_batch_size", "recipe_epochs", "final_epoch"}
    for name in set((HOME / "attributes.txt").read_text().split()) - worked_out:
        setattr(trainer, name, getattr(trainer, name))
    trainer.is_in_train = True
    assert trainer.is_in_train


class Heard(TrainerCallback):
    def __init__(self) -> None:
        self.error: BaseException | None = None

    def on_train_failed(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.error = kwargs["error"]
        raise ValueError("a mistake of the callback's own")


def test_callbacks_hear_of_an_error_and_cannot_hide_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = build(tmp_path, Net(fails_at=3))
    heard = Heard()
    trainer.add_callback(heard)
    with pytest.raises(RuntimeError, match="a mistake"):
        trainer.train()
    assert isinstance(heard.error, RuntimeError)
    assert "A callback failed on_train_failed" in caplog.text


class Patched(Trainer):
    """Three levels of ``super()``, and a patch on the instance in the middle of a training."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self.depth = getattr(self, "depth", 0) + 1
        return super().compute_loss(model, inputs, *args, **kwargs)


class Deeper(Patched):
    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(model, inputs, *args, **kwargs)


class Deepest(Deeper):
    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(model, inputs, *args, **kwargs)


def test_overrides_reach_the_loss_however_deep_and_whenever_they_come(tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path), max_steps=4, save_strategy="no", disable_tqdm=True, use_cpu=True)
    trainer = Deepest(Net(), args, train_dataset=rows())
    patched = []

    class Patch(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                inner = trainer._prepare_inputs
                trainer._prepare_inputs = lambda inputs: patched.append(1) or inner(inputs)  # type: ignore[method-assign]

    trainer.add_callback(Patch())
    trainer.train()
    assert trainer.depth == 4
    assert len(patched) == 2


@pytest.mark.slow
def test_a_trainer_can_be_sent_to_another_process(tmp_path: Path) -> None:
    """Before a training and after one; what arrives trains as what was sent."""
    trainer = build(tmp_path, Net())
    for _ in range(2):
        arrived = pickle.loads(pickle.dumps(trainer))  # noqa: S301
        for one in (trainer, arrived):
            one.train()
        for ours, theirs in zip(trainer.model.parameters(), arrived.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)
        assert arrived.state.global_step == trainer.state.global_step > 0
        assert arrived.engine is not trainer.engine


def test_gradients_that_were_there_before_do_not_go_into_the_first_update(tmp_path: Path) -> None:
    ended = []
    for by_hand in (False, True):
        trainer = build(tmp_path / str(by_hand), Net(), max_steps=1)
        if by_hand:
            for parameter in trainer.model.parameters():
                parameter.grad = torch.ones_like(parameter)
        trainer.train()
        ended.append([parameter.detach().clone() for parameter in trainer.model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*ended, strict=True))


def test_a_training_within_a_training_is_refused(tmp_path: Path) -> None:
    class Nested(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            trainer.train()

    trainer = build(tmp_path, Net())
    trainer.add_callback(Nested())
    with pytest.raises(ValueError, match="This Trainer is training"):
        trainer.train()
    trainer.remove_callback(Nested)
    assert trainer.train().global_step == 6


def test_a_run_that_went_back_keeps_its_clock(tmp_path: Path) -> None:
    """What is due by the time was last done by that clock: with a new one it would wait for as long again."""
    began = []

    class Look(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            assert trainer._run is not None
            began.append((state.global_step, trainer._run.clock_began))

    trainer = build(tmp_path, Net(), bad=14)
    trainer.add_callback(Look())
    trainer.train()
    steps = [step for step, _ in began]
    assert steps != sorted(set(steps))
    assert len({clock for _, clock in began}) == 1
