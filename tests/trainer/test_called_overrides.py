"""Internals of transformers' Trainer that subclasses override, and that are called here at the same moment."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainingArguments
from trainwright.checkpoint.manifest import verify
from trainwright.config import TrainwrightWarning

Make = Callable[..., TrainingArguments]
ROWS: Any = classification_rows(16)


def logged(trainer: Trainer, name: str) -> list[Any]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


# ---- a step


def test_a_subclass_clips_its_gradients_in_its_own_way(make_args: Make) -> None:
    class ByValue(Trainer):
        def _clip_grad_norm(self, model: nn.Module) -> Any:
            norm = super()._clip_grad_norm(model)
            for parameter in model.parameters():
                parameter.grad.clamp_(-1e-3, 1e-3)  # type: ignore[union-attr]
            return norm

    args: dict[str, Any] = {"max_steps": 1, "optim": "sgd", "learning_rate": 1.0, "logging_steps": 1}
    model = Plain().float()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = ByValue(model, make_args(**args), train_dataset=ROWS)
    trainer.train()
    moved = max(float((value - before[name]).abs().max()) for name, value in model.state_dict().items())
    assert moved == pytest.approx(1e-3, rel=1e-3)
    assert logged(trainer, "grad_norm")[0] > 1e-2


@pytest.mark.parametrize("most", [1.0, 0.0])
def test_a_subclass_says_which_norm_is_logged(make_args: Make, most: float) -> None:
    seen: list[Any] = []

    class Twice(Trainer):
        def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
            seen.append(grad_norm)
            return 2 * float(super()._get_grad_norm(model, grad_norm=grad_norm))

    settings: dict[str, Any] = {"max_steps": 2, "logging_steps": 1, "max_grad_norm": most}
    own, plain = Twice(Plain().float(), make_args(**settings), train_dataset=ROWS), None
    own.train()
    plain = Trainer(Plain().float(), make_args(**settings), train_dataset=ROWS)
    plain.train()
    assert logged(own, "grad_norm") == pytest.approx([2 * norm for norm in logged(plain, "grad_norm")])
    assert [norm is None for norm in seen] == [most == 0.0] * 2


def test_a_step_that_is_not_finite_is_skipped_whatever_norm_a_subclass_returns(make_args: Make) -> None:
    class Hides(Trainer):
        def _clip_grad_norm(self, model: nn.Module) -> Any:
            return 0.0

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return super().compute_loss(*args, **kwargs) * (math.nan if self.state.global_step == 1 else 1.0)

    trainer = Hides(Plain().float(), make_args(max_steps=3, logging_nan_inf_filter=False), train_dataset=ROWS)
    trainer.train()
    assert all(bool(value.isfinite().all()) for value in trainer.model.state_dict().values())


def test_a_subclass_says_which_learning_rate_is_logged(make_args: Make) -> None:
    class Ten(Trainer):
        def _get_learning_rate(self) -> float:
            return 10 * super()._get_learning_rate()

    args = make_args(max_steps=3, logging_steps=1, learning_rate=0.1, optim="sgd", lr_scheduler_type="linear")
    trainer = Ten(Plain().float(), args, train_dataset=ROWS)
    trainer.train()
    assert logged(trainer, "learning_rate") == pytest.approx([1.0, 2 / 3, 1 / 3])


def test_a_subclass_prepares_each_tensor_of_a_batch(make_args: Make) -> None:
    shapes: list[tuple[int, ...]] = []

    class Doubles(Trainer):
        def _prepare_input(self, data: Any) -> Any:
            if isinstance(data, Tensor):
                shapes.append(tuple(data.shape))
            return super()._prepare_input(data)

    args = make_args(max_steps=2, per_device_train_batch_size=4, per_device_eval_batch_size=8)
    trainer = Doubles(Plain().float(), args, train_dataset=ROWS, eval_dataset=ROWS)
    trainer.train()
    assert len(shapes) == 4
    trainer.evaluate()
    assert len(shapes) == 8


def test_a_subclass_counts_input_tokens_in_its_own_way(make_args: Make) -> None:
    class Own(Trainer):
        def _track_num_input_tokens(self, inputs: Any) -> None:
            super()._track_num_input_tokens(inputs)
            self.state.num_input_tokens_seen += 100

    trainer = Own(Plain().float(), make_args(max_steps=3, gradient_accumulation_steps=2), train_dataset=ROWS)
    trainer.train()
    assert trainer.state.num_input_tokens_seen == 600


def test_autocast_of_a_subclass_surrounds_every_loss(make_args: Make) -> None:
    entered: list[bool] = []

    class Own(Trainer):
        def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> Any:
            entered.append(True)
            return super().autocast_smart_context_manager(cache_enabled)

    Own(Plain().float(), make_args(max_steps=2), train_dataset=ROWS).train()
    assert len(entered) == 2


# ---- the model, the plan


def test_a_subclass_moves_the_model_in_its_own_way(make_args: Make) -> None:
    moved: list[tuple[bool, str]] = []

    class Own(Trainer):
        def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
            moved.append((model is given, torch.device(device).type))
            super()._move_model_to_device(model, device)

    given = Plain().float()
    Own(given, make_args(max_steps=1), train_dataset=ROWS)
    assert moved == [(True, "cpu")]


class Scaled(nn.Module):
    """A wrapper as a subclass might put around its model."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, **inputs: Any) -> Any:
        self.calls += 1
        return self.inner(**inputs)


def test_a_subclass_wraps_the_model_for_training_and_for_evaluation(make_args: Make) -> None:
    asked: list[bool] = []

    class Wraps(Trainer):
        def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
            asked.append(training)
            model = super()._wrap_model(model, training, dataloader)
            return Scaled(model) if training else model

    settings: dict[str, Any] = {"max_steps": 3, "eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps"}
    trainer = Wraps(Plain().float(), make_args(**settings), train_dataset=ROWS, eval_dataset=ROWS)
    trainer.train()
    wrapped = trainer.model_wrapped
    assert isinstance(wrapped, Scaled)
    # An evaluation, in a training too, is asked for by itself.
    assert wrapped.calls == 3
    assert isinstance(trainer.model, Plain)
    plain = Trainer(Plain().float(), make_args(**settings), train_dataset=ROWS, eval_dataset=ROWS)
    plain.train()
    for name, value in plain.model.state_dict().items():
        assert torch.equal(trainer.model.state_dict()[name], value)
    trainer.evaluate()
    assert asked == [True, False, False]


def test_a_wrapper_that_sums_gradients_itself_is_refused(make_args: Make) -> None:
    class Wraps(Trainer):
        def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
            return nn.DataParallel(model)

    with pytest.raises(ValueError, match="_wrap_model returned a DataParallel"):
        Wraps(Plain().float(), make_args(max_steps=1), train_dataset=ROWS).train()


def test_a_subclass_says_how_long_a_training_is(make_args: Make) -> None:
    class Shorter(Trainer):
        def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
            *values, max_steps = super().set_initial_training_values(args, dataloader)
            return (*values, max_steps - 3)

    class OfVersion4(Trainer):
        def set_initial_training_values(self, args: Any, dataloader: Any, total_train_batch_size: int) -> Any:  # type: ignore[override]
            assert total_train_batch_size == 4
            return super().set_initial_training_values(args, dataloader)

    args = {"num_train_epochs": 2, "per_device_train_batch_size": 4}
    assert Shorter(Plain().float(), make_args(**args), train_dataset=ROWS).train().global_step == 5
    assert OfVersion4(Plain().float(), make_args(**args), train_dataset=ROWS).train().global_step == 8


def test_a_subclass_says_how_many_samples_a_step_has(make_args: Make) -> None:
    class Packed(Trainer):
        def get_total_train_batch_size(self, args: Any) -> int:
            return 10 * super().get_total_train_batch_size(args)

    args = make_args(max_steps=2, per_device_train_batch_size=4)
    trainer = Packed(Plain().float(), args, train_dataset=ROWS)
    values = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())
    assert values == (1, 4, 16, 80, 40, 4, 2)
    metrics = trainer.train().metrics
    assert metrics["train_samples_per_second"] > 5 * metrics["train_steps_per_second"]


def test_a_subclass_checks_its_arguments_when_it_is_built(make_args: Make) -> None:
    class Checks(Trainer):
        def _validate_args(self) -> None:
            super()._validate_args()
            if len(self.train_dataset) < 100:
                raise ValueError("too few samples")

    class Allows(Trainer):
        def _validate_args(self) -> None:
            """An evaluation without data is fine for one who makes it up."""

    with pytest.raises(ValueError, match="too few samples"):
        Checks(Plain().float(), make_args(), train_dataset=ROWS)
    with pytest.raises(ValueError, match="Pass optimizers= or optimizer_cls_and_kwargs="):
        Trainer(*conflicting(make_args()))
    Allows(*conflicting(make_args()))


def conflicting(args: TrainingArguments) -> Any:
    model = Plain().float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return (model, args, None, ROWS, None, None, None, None, None, None, (optimizer, None), (torch.optim.SGD, {}))


def test_a_subclass_surrounds_the_whole_training(make_args: Make) -> None:
    """As one that starts a server for its generations, and stops it whatever happens."""
    said: list[str] = []

    class Surrounds(Trainer):
        def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
            said.append("start")
            try:
                return super()._inner_training_loop(*args, **kwargs)
            finally:
                said.append(f"stop at {self.state.global_step}")

    assert Surrounds(Plain().float(), make_args(max_steps=2), train_dataset=ROWS).train().global_step == 2
    assert said == ["start", "stop at 2"]


@pytest.mark.parametrize("name", ["_inner_training_loop", "_run_epoch"])
def test_a_training_loop_of_ones_own_is_refused(make_args: Make, name: str) -> None:
    own = type("Loops", (Trainer,), {name: lambda self, *args, **kwargs: None})
    with pytest.raises(ValueError, match=f"Loops.{name} replaces the training loop"):
        own(Plain().float(), make_args(), train_dataset=ROWS)


# ---- evaluating in a training


def test_a_subclass_decides_which_evaluation_is_the_best(make_args: Make, tmp_path: Path) -> None:
    class LastIsBest(Trainer):
        def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
            assert trial is None
            super()._determine_best_metric(metrics, trial)
            self.state.best_metric, self.state.best_global_step = metrics["eval_loss"], self.state.global_step
            return True

    args = make_args(max_steps=3, eval_strategy="steps", eval_steps=1, save_strategy="best",
                     metric_for_best_model="loss", greater_is_better=True, learning_rate=1e-2)  # fmt: skip
    trainer = LastIsBest(Plain().float(), args, train_dataset=ROWS, eval_dataset=ROWS)
    trainer.train()
    assert trainer.state.best_global_step == 3
    assert (tmp_path / "run" / "checkpoint-3").is_dir()


def test_a_subclass_evaluates_in_its_own_way_in_a_training(make_args: Make) -> None:
    asked: list[tuple[Any, Any, bool]] = []

    class Adds(Trainer):
        def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> dict[str, float]:
            asked.append((trial, ignore_keys_for_eval, skip_scheduler))
            metrics = super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)
            return {**metrics, "eval_score": self.state.global_step}

    args = make_args(max_steps=2, eval_strategy="steps", eval_steps=1, eval_on_start=True,
                     metric_for_best_model="score", greater_is_better=True)  # fmt: skip
    trainer = Adds(Plain().float(), args, train_dataset=ROWS, eval_dataset=ROWS)
    trainer.train(ignore_keys_for_eval=["extra"])
    assert asked == [(None, ["extra"], True), (None, ["extra"], False), (None, ["extra"], False)]
    assert trainer.state.best_metric == 2


@pytest.mark.parametrize("calls_super", [True, False])
def test_a_schedule_hears_of_an_evaluation_once(make_args: Make, calls_super: bool) -> None:
    """A copied ``_evaluate`` steps the schedule by itself; one that calls ``super()`` leaves it to that."""
    told: list[float] = []

    class Own(Trainer):
        def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> dict[str, float]:
            if calls_super:
                return super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)
            metrics = self.evaluate(ignore_keys=ignore_keys_for_eval)
            self.lr_scheduler.step(metrics["eval_loss"])
            return metrics

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            scheduler = super().create_scheduler(num_training_steps, optimizer)
            step = scheduler.step
            scheduler.step = lambda value: (told.append(value), step(value))
            return scheduler

    args = make_args(max_steps=2, eval_strategy="steps", eval_steps=1, lr_scheduler_type="reduce_lr_on_plateau",
                     metric_for_best_model="loss")  # fmt: skip
    Own(Plain().float(), args, train_dataset=ROWS, eval_dataset=ROWS).train()
    assert len(told) == 2


def test_a_metric_that_an_evaluation_of_ones_own_does_not_give_is_named(make_args: Make) -> None:
    class Own(Trainer):
        def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
            return {"eval_loss": 1.0, "eval_f1": 0.5}

    args = make_args(max_steps=1, eval_strategy="steps", eval_steps=1, metric_for_best_model="accuracy")
    with pytest.raises(KeyError, match="'eval_accuracy', but evaluation produces only: eval_f1, eval_loss"):
        Own(Plain().float(), args, train_dataset=ROWS, eval_dataset=ROWS).train()


# ---- saving and loading


class Keeps(Trainer):
    """Files of its own beside optimizer and random state, as TRL's BCOTrainer has them."""

    loaded: Any = None

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        Path(output_dir, "running.json").write_text(json.dumps(self.state.global_step))

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        Path(output_dir, "rng.txt").write_text("mine")

    def _save_scaler(self, output_dir: str) -> None:
        super()._save_scaler(output_dir)
        Path(output_dir, "scaler.txt").write_text("mine")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.loaded = json.loads(Path(checkpoint, "running.json").read_text())


def test_files_that_a_subclass_saves_beside_the_optimizer_are_part_of_a_checkpoint(
    make_args: Make, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-2}
    Keeps(Plain().float(), make_args(**settings), train_dataset=ROWS).train()
    folder = tmp_path / "run" / "checkpoint-2"
    verify(folder)
    assert {"running.json", "rng.txt", "scaler.txt", "model.safetensors"} <= {path.name for path in folder.iterdir()}
    assert "running.json" in (folder / "manifest.json").read_text()
    again = Keeps(Plain().float(), make_args(**settings), train_dataset=ROWS)
    again.train(str(folder))
    assert again.loaded == 2
    plain = Trainer(
        Plain().float(), make_args(**{**settings, "output_dir": str(tmp_path / "plain")}), train_dataset=ROWS
    )
    plain.train()
    for name, value in plain.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value)


def test_a_subclass_that_loads_its_optimizer_itself_is_left_to_it(make_args: Make, tmp_path: Path) -> None:
    class Anew(Trainer):
        def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
            """Begins with an optimizer that knows nothing."""

    settings: dict[str, Any] = {"max_steps": 3, "save_strategy": "steps", "save_steps": 2, "optim": "adamw_torch"}
    Trainer(Plain().float(), make_args(**settings), train_dataset=ROWS).train()
    trainer = Anew(Plain().float(), make_args(**settings), train_dataset=ROWS)
    trainer.train(str(tmp_path / "run" / "checkpoint-2"))
    assert {int(state["step"]) for state in trainer.optimizer.state.values()} == {1}
    assert trainer.state.global_step == 3


def test_a_checkpoint_that_a_subclass_writes_by_itself_is_said_to_have_no_guarantees(
    make_args: Make, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    class Own(Trainer):
        def _save_checkpoint(self, model: Any, trial: Any = None, metrics: Any = None) -> None:
            folder = Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
            folder.mkdir()
            (folder / "adapter.txt").write_text("mine")

    args = make_args(max_steps=4, save_strategy="steps", save_steps=2)
    Own(Plain().float(), args, train_dataset=ROWS).train()
    said = [record.message for record in caplog.records if "_save_checkpoint" in record.message]
    assert len(said) == 1
    assert "Own._save_checkpoint does not call super()._save_checkpoint" in said[0]
    assert "cannot be resumed from" in said[0]
    assert (tmp_path / "run" / "checkpoint-4" / "adapter.txt").is_file()


# ---- what is never called


def test_every_override_that_is_never_called_is_named_with_what_to_do_instead(make_args: Make) -> None:
    def nothing(self: Any, *args: Any, **kwargs: Any) -> None: ...

    names = (
        "_get_num_items_in_batch",
        "_prepare_for_training",
        "_sync_replicated_trainable_parameters",
        "prediction_loop",
    )
    own = type("Reaches", (Trainer,), {**dict.fromkeys(names, nothing), "_helper_of_its_own": nothing})
    with pytest.warns(TrainwrightWarning, match="Reaches defines") as caught:
        own(Plain().float(), make_args(max_steps=1), train_dataset=ROWS)
    (message,) = [str(one.message) for one in caught]
    assert all(name in message for name in names)
    assert "override count_targets(inputs)" in message
    assert "_helper_of_its_own" not in message


def test_overrides_are_called_with_the_arguments_that_transformers_gives_them(tmp_path: Path) -> None:
    """Written for exactly these, without defaults: whoever passes more, or fewer, ends in a TypeError."""
    called: dict[str, Any] = {}

    class Strict(Trainer):
        def get_eval_dataloader(self, eval_dataset: Any) -> Any:  # type: ignore[override]
            called["get_eval_dataloader"] = eval_dataset
            return super().get_eval_dataloader(eval_dataset)

        def _evaluate(self, trial: Any, ignore_keys_for_eval: Any) -> Any:  # type: ignore[override]
            called["_evaluate"] = True
            return super()._evaluate(trial, ignore_keys_for_eval)

        def _wrap_model(self, model: Any, training: bool = True) -> Any:  # type: ignore[override]
            called["_wrap_model"] = training
            return super()._wrap_model(model, training)

        def create_scheduler(self, num_training_steps: int) -> Any:  # type: ignore[override]
            called["create_scheduler"] = num_training_steps
            return super().create_scheduler(num_training_steps)

        def training_step(self, model: Any, inputs: Any, n: Any) -> Any:  # type: ignore[override]
            called["training_step"] = n
            return super().training_step(model, inputs, n)

        def _determine_best_metric(self, *, metrics: Any, trial: Any) -> bool:  # type: ignore[override]
            called["_determine_best_metric"] = True
            return super()._determine_best_metric(metrics, trial)

        def _save(self, output_dir: Any = None, state_dict: Any = None) -> None:
            super()._save(output_dir, state_dict)
            Path(output_dir + "/extra").write_text("of a subclass")

    settings: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "max_steps": 2}
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True, **settings)
    rows = classification_rows(8)
    trainer = Strict(Plain(), args, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    trainer.save_model(str(tmp_path / "final"))
    assert called.pop("get_eval_dataloader") is rows
    assert int(called.pop("training_step")) == 8
    assert called == {"_evaluate": True, "_wrap_model": False, "create_scheduler": 2, "_determine_best_metric": True}
    for folder in ("checkpoint-1", "checkpoint-2", "final"):
        assert (tmp_path / folder / "extra").read_text() == "of a subclass"
