"""Training and evaluation mode where user code can see it: as with transformers, and without a trace in the weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.models import classification_rows
from trainwright import Trainer, TrainerCallback, TrainingArguments

Make = Callable[..., TrainingArguments]
ROWS = classification_rows(16)


class Delicate(nn.Module):
    """Dropout and batch statistics: whoever calls it in the wrong mode leaves a trace."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.head(self.body(x))
        loss = logits.sum() * 0 if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


class KeepsItsBodyFrozen(Delicate):
    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.body.eval()
        return self


class Merges(Delicate):
    """Adds a part to its weights for evaluation and takes it out again, whenever the mode changes."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Parameter(torch.full((3, 8), 0.3))

    def train(self, mode: bool = True) -> Any:
        if mode != self.training:
            self.head.weight.data.add_(self.part.data, alpha=-1.0 if mode else 1.0)
        return super().train(mode)


class FreezesEachStep(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        model.body.eval()


class Calls(TrainerCallback):
    """Shows samples after an evaluation, as people do, and trusts the mode."""

    def on_evaluate(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        with torch.no_grad():
            model(torch.ones(4, 6))


def events_seen(library: Any, folder: Path) -> list[tuple[str, bool]]:
    """What ``model.training`` is where somebody looks, in a run with evaluations, saves, both and neither."""
    seen: list[tuple[str, bool]] = []

    class Looks(library.TrainerCallback):
        def on_evaluate(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            seen.append(("on_evaluate", model.training))

        def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            seen.append((f"on_save {state.global_step}", model.training))

        def on_epoch_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            seen.append((f"on_epoch_end {state.global_step}", model.training))

        def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            seen.append(("on_train_end", model.training and model.body.training))

    class Own(library.Trainer):
        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            seen.append(("log " + min(logs), self.model.training))
            super().log(logs, start_time)

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(("compute_loss", self.model.training and self.model.body.training))
            return super().compute_loss(model, inputs, *args, **kwargs)

    args = library.TrainingArguments(
        str(folder), max_steps=6, per_device_train_batch_size=4, logging_steps=1, eval_strategy="steps", eval_steps=2,
        save_strategy="steps", save_steps=3, use_cpu=True, report_to="none", disable_tqdm=True,
    )  # fmt: skip
    rows: Any = ROWS
    Own(Delicate(), args, train_dataset=rows, eval_dataset=rows[:4], callbacks=[Looks()]).train()
    return seen


def test_callbacks_see_the_mode_that_they_see_in_transformers(tmp_path: Path) -> None:
    import trainwright

    ours, theirs = events_seen(trainwright, tmp_path / "ours"), events_seen(transformers, tmp_path / "theirs")
    assert ours == theirs
    assert ("on_evaluate", False) in ours
    assert ("on_save 6", False) in ours
    assert ("on_save 3", True) in ours
    assert ("on_train_end", False) in ours


@pytest.mark.parametrize("own_step", [False, True])
@pytest.mark.parametrize(
    ("kind", "callbacks"),
    [(Delicate, []), (Delicate, [Calls]), (Delicate, [FreezesEachStep]), (KeepsItsBodyFrozen, [Calls])],
)
def test_evaluations_saves_and_callbacks_that_call_the_model_leave_no_trace(
    make_args: Make, tmp_path: Path, kind: type[Delicate], callbacks: list[Any], own_step: bool
) -> None:
    class OwnStep(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            loss = self.compute_loss(model, self._prepare_inputs(inputs))
            loss.backward()
            return loss.detach()

    def weights(folder: str, **settings: Any) -> dict[str, Tensor]:
        fixed = {"max_steps": 7, "per_device_train_batch_size": 4, "learning_rate": 1e-2}
        args = make_args(output_dir=str(tmp_path / folder), **fixed, **settings)
        model = kind()
        chosen = OwnStep if own_step else Trainer
        chosen(model, args, train_dataset=ROWS, eval_dataset=ROWS, callbacks=[one() for one in callbacks]).train()
        return model.state_dict()

    plain = weights("plain")
    looked_at = weights("looked", eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=3)
    for name, value in plain.items():
        assert torch.equal(looked_at[name], value), name


def test_a_model_that_merges_weights_for_evaluation_is_saved_as_it_trains(make_args: Make, tmp_path: Path) -> None:
    """Otherwise a resumed run would take merged weights for plain ones."""
    settings: dict[str, Any] = {
        "max_steps": 4, "learning_rate": 1e-2, "lr_scheduler_type": "constant", "eval_strategy": "steps",
        "eval_steps": 2, "save_strategy": "steps", "save_steps": 2,
    }  # fmt: skip

    def trained(folder: str, resume: bool, **changed: Any) -> Merges:
        args = make_args(output_dir=str(tmp_path / folder), **{**settings, **changed})
        model = Merges()
        Trainer(model, args, train_dataset=ROWS, eval_dataset=ROWS).train(resume_from_checkpoint=resume)
        return model

    whole = trained("whole", resume=False)
    saved = load_file(tmp_path / "whole" / "checkpoint-4" / "model.safetensors")
    assert torch.equal(saved["head.weight"], whole.head.weight)
    trained("cut", resume=False, max_steps=2)
    resumed = trained("cut", resume=True)
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


def test_an_evaluation_by_a_callback_leaves_the_next_step_in_training_mode(make_args: Make) -> None:
    modes: list[bool] = []

    class Evaluates(TrainerCallback):
        trainer: Any = None

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 1:
                self.trainer.evaluate()

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            self.trainer.predict(ROWS[:4])
            assert not model.training

    class Own(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            modes.extend(part.training for part in model.modules())
            return super().training_step(model, inputs, num_items_in_batch)

    callback = Evaluates()
    trainer = Own(Delicate(), make_args(max_steps=4), train_dataset=ROWS, eval_dataset=ROWS, callbacks=[callback])
    callback.trainer = trainer
    trainer.train()
    assert modes
    assert all(modes)
