"""A Module through the Trainer: steps, data, evaluation, what is stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tests.models import Plain, classification_rows, sentence_rows, tiny_bert, tiny_gpt2, token_rows
from tests.modules import Classifier, StopAt, equal, weights
from trainwright import EvalPrediction, Module, Trainer, TrainingArguments
from trainwright.engines.torch.targets import TargetCounter

MakeArgs = Callable[..., TrainingArguments]


def loader(rows: Any, size: int = 1, **options: Any) -> DataLoader[Any]:
    return DataLoader(rows, batch_size=size, **options)


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


# ---- training


def test_a_module_equals_a_raw_loop_bit_for_bit(make_args: MakeArgs) -> None:
    rows = classification_rows(16)
    args = make_args(num_train_epochs=2, per_device_train_batch_size=4, train_sampling_strategy="sequential")
    module = Classifier()
    Trainer(module, args, train_dataset=rows).train()

    raw = Classifier()
    optimizer = torch.optim.AdamW(raw.parameters(), lr=5e-5, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (8 - step) / 8)
    for _ in range(2):
        for start in range(0, 16, 4):
            batch = {name: torch.stack([row[name] for row in rows[start : start + 4]]) for name in rows[0]}
            raw.training_step(batch).backward()
            nn.utils.clip_grad_norm_(raw.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    assert equal(module, raw)


def test_a_module_equals_the_same_model_without_one(make_args: MakeArgs) -> None:
    rows = classification_rows(24)
    module, plain = Classifier(), Plain()
    Trainer(module, make_args(max_steps=5), train_dataset=rows).train()
    Trainer(plain, make_args(max_steps=5), train_dataset=rows).train()
    assert equal(module, plain)


class Tagger(Module):
    """A token-wise loss over targets that are not -100, in double precision."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(32, 32, dtype=torch.float64)

    def training_step(self, batch: Any) -> Any:
        logits = self.table(batch["input_ids"])
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


@pytest.mark.parametrize(("size", "accumulation"), [(2, 4), (4, 2), (1, 8)])
def test_the_gradient_does_not_depend_on_the_cut(make_args: MakeArgs, size: int, accumulation: int) -> None:
    def train(size: int, accumulation: int) -> nn.Module:
        module = Tagger()
        options: dict[str, Any] = {"optim": "sgd", "learning_rate": 0.5, "max_grad_norm": 0, "max_steps": 3}
        args = make_args(per_device_train_batch_size=size, gradient_accumulation_steps=accumulation, **options)
        Trainer(module, args, train_dataset=token_rows(24, empty_row=True)).train()
        return module

    for one, other in zip(weights(train(8, 1)), weights(train(size, accumulation)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", ["scalar", "dict", "tuple"])
def test_forms_of_a_training_step(make_args: MakeArgs, form: str) -> None:
    class Formed(Classifier):
        def training_step(self, batch: Any) -> Any:
            loss = super().training_step(batch)
            return {"scalar": loss, "dict": {"loss": loss, "more": 1}, "tuple": (loss, batch)}[form]

    module, plain = Formed(), Classifier()
    for trained in (module, plain):
        Trainer(trained, make_args(max_steps=2), train_dataset=classification_rows(16)).train()
    assert equal(module, plain)


def test_own_count_of_targets_weighs_the_batches(make_args: MakeArgs) -> None:
    class Weighed(Classifier):
        def count_targets(self, batch: Any) -> int:
            seen.append(len(batch["labels"]))
            return 1

    seen: list[int] = []
    args = make_args(max_steps=1, per_device_train_batch_size=2, gradient_accumulation_steps=2)
    Trainer(Weighed(), args, train_dataset=classification_rows(4)).train()
    assert seen == [2, 2]


def test_after_backward_sees_each_share_of_the_loss(make_args: MakeArgs) -> None:
    class Watching(Classifier):
        def after_backward(self, loss: Tensor) -> None:
            assert self.model.first.weight.grad is not None
            shares.append(float(loss))

    shares: list[float] = []
    args = make_args(max_steps=1, per_device_train_batch_size=2, gradient_accumulation_steps=2, logging_steps=1)
    trainer = Trainer(Watching(), args, train_dataset=classification_rows(4))
    trainer.train()
    assert len(shares) == 2
    assert sum(shares) == pytest.approx(trainer.state.log_history[0]["loss"], rel=1e-6)


@pytest.mark.slow
def test_a_step_that_did_not_fit_is_told_to_the_module(make_args: MakeArgs) -> None:
    class Large(Classifier):
        """From the second step on, no more than two samples fit."""

        is_full = False

        def training_step(self, batch: Any) -> Any:
            self.log("rows", len(batch["labels"]))
            if self.is_full and len(batch["labels"]) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().training_step(batch)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.is_full = True

        def on_step_redo(self) -> None:
            redone.append(True)

        def split_batch(self, batch: Any, parts: int) -> list[Any]:
            cuts.append(parts)
            return super().split_batch(batch, parts)

    redone: list[bool] = []
    cuts: list[int] = []
    args = make_args(max_steps=3, per_device_train_batch_size=4, micro_batch="auto", logging_steps=1)
    trainer = Trainer(Large(), args, train_dataset=classification_rows(12))
    trainer.train()
    # After the look before the first step, and after the step that did not fit.
    assert redone == [True, True]
    assert cuts[-1] == 2
    # What the step that did not fit had logged is forgotten.
    assert [entry["rows"] for entry in trainer.state.log_history if "rows" in entry] == [4.0, 2.0, 2.0]


# ---- ways to begin


def test_all_ways_to_begin_are_the_same(make_args: MakeArgs) -> None:
    rows = classification_rows(16)
    modules = [Classifier() for _ in range(4)]
    outputs = [
        Trainer(modules[0], make_args(max_steps=3), train_dataset=rows).train(),
        Trainer(modules[1], make_args(max_steps=3), train_dataset=rows).fit(),
        Trainer(args=make_args(max_steps=3)).fit(modules[2], rows),
        Trainer(args=make_args(max_steps=3)).fit(modules[3], train=rows, val={"a": rows}),
    ]
    assert {output.training_loss for output in outputs} == {outputs[0].training_loss}
    assert all(equal(module, modules[0]) for module in modules)


def test_fit_trains_a_plain_network_too(make_args: MakeArgs) -> None:
    trainer = Trainer(args=make_args(max_steps=3))
    assert trainer.fit(Plain(), classification_rows(16)).global_step == 3
    assert trainer.fit(Classifier(), classification_rows(16)).global_step == 3
    assert "eval_loss" in trainer.evaluate(classification_rows(8))


def test_a_trainer_without_a_model_says_so(make_args: MakeArgs) -> None:
    trainer = Trainer(args=make_args(max_steps=1))
    for call in (trainer.train, trainer.evaluate, trainer.fit, trainer.test, lambda: trainer.predict([])):
        with pytest.raises(ValueError, match=r"needs a model.*fit\("):
            call()
    with pytest.raises(ValueError, match=r"takes a torch\.nn\.Module first, not a list"):
        trainer.fit(classification_rows(4))  # type: ignore[arg-type]
    made = Trainer(model_init=Classifier, args=make_args(max_steps=1), train_dataset=classification_rows(8))
    with pytest.raises(ValueError, match="two models"):
        made.fit(Classifier())
    assert made.train().global_step == 1


class WithData(Classifier):
    def train_dataloader(self) -> Any:
        return loader(classification_rows(12), 4, shuffle=True)

    def val_dataloader(self) -> Any:
        return {"near": loader(classification_rows(6, seed=5), 4), "far": classification_rows(5, seed=6)}

    def test_dataloader(self) -> Any:
        return loader(classification_rows(7, seed=7), 3)

    def predict_dataloader(self) -> Any:
        return classification_rows(9, seed=8)


def test_data_of_the_module(make_args: MakeArgs) -> None:
    args = make_args(num_train_epochs=2, eval_strategy="epoch", per_device_eval_batch_size=2)
    trainer = Trainer(WithData(), args, compute_metrics=accuracy)
    assert trainer.fit().global_step == 6
    evaluations = [
        entry for entry in trainer.state.log_history if "eval_near_loss" in entry or "eval_far_loss" in entry
    ]
    assert len(evaluations) == 4
    near = trainer.evaluate()["eval_near_accuracy"]
    assert near == trainer.evaluate(classification_rows(6, seed=5))["eval_accuracy"]
    tested = trainer.test()
    assert tested["test_loss"] == pytest.approx(trainer.evaluate(classification_rows(7, seed=7))["eval_loss"])
    assert tested["test_accuracy"] == trainer.evaluate(classification_rows(7, seed=7))["eval_accuracy"]
    assert trainer.predict().predictions.shape == (9, 3)


def test_a_loader_trains_like_its_dataset(make_args: MakeArgs) -> None:
    rows = classification_rows(16)
    by_rows, by_loader = Classifier(), Classifier()
    args = make_args(num_train_epochs=2, per_device_train_batch_size=4)
    Trainer(by_rows, args, train_dataset=rows).train()
    Trainer(args=make_args(num_train_epochs=2)).fit(by_loader, loader(rows, 4, shuffle=True))
    assert equal(by_rows, by_loader)


def test_data_that_cannot_be_meant(make_args: MakeArgs) -> None:
    loaders = [loader(classification_rows(4)), loader(classification_rows(4))]
    trainer = Trainer(Classifier(), make_args(max_steps=1), train_dataset=classification_rows(4))
    with pytest.raises(ValueError, match="a dict by name"):
        trainer.evaluate(loaders)
    with pytest.raises(ValueError, match="needs data"):
        trainer.test()
    with pytest.raises(ValueError, match="needs data"):
        trainer.predict()
    grouped = Trainer(args=make_args(max_steps=1, max_tokens_per_batch=64))
    with pytest.raises(ValueError, match="max_tokens_per_batch cannot act"):
        grouped.fit(Classifier(), loaders[0])
    with pytest.raises(ValueError, match="eval_strategy='epoch'"):
        Trainer(Classifier(), make_args(eval_strategy="epoch"), train_dataset=classification_rows(4)).train()
    waiting = Trainer(args=make_args(eval_strategy="epoch"))
    with pytest.raises(ValueError, match="eval_strategy='epoch'"):
        waiting.fit(Classifier(), classification_rows(4))


def test_no_column_is_dropped(make_args: MakeArgs) -> None:
    class Curious(Classifier):
        def training_step(self, batch: Any) -> Any:
            columns.update(batch)
            return super().training_step(batch)

    columns: set[str] = set()
    rows = [{**row, "extra": torch.zeros(1)} for row in classification_rows(8)]
    Trainer(Curious(), make_args(max_steps=1), train_dataset=rows).train()
    assert columns == {"x", "labels", "extra"}


# ---- evaluation


@pytest.mark.parametrize("size", [1, 3, 16])
def test_the_validation_loss_does_not_depend_on_the_batch_size(make_args: MakeArgs, size: int) -> None:
    rows = token_rows(16, empty_row=True)
    whole = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    trainer = Trainer(Tagger(), make_args(per_device_eval_batch_size=size))
    expected = Tagger().training_step(whole).item()
    assert trainer.evaluate(rows)["eval_loss"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("form", ["dict", "tuple", "no labels", "output"])
def test_metrics_from_every_form_of_validation(make_args: MakeArgs, form: str) -> None:
    class Formed(Classifier):
        def validation_step(self, batch: Any) -> Any:
            logits = self.model.logits(batch["x"])
            loss = F.cross_entropy(logits, batch["labels"])
            return {
                "dict": {"loss": loss, "predictions": logits, "labels": batch["labels"]},
                "tuple": (loss, logits),
                "no labels": {"loss": loss, "logits": logits},
                "output": self.model(**batch),
            }[form]

    rows = classification_rows(10)
    metrics = Trainer(Formed(), make_args(), compute_metrics=accuracy).evaluate(rows)
    plain = Trainer(Plain(), make_args(), compute_metrics=accuracy).evaluate(rows)
    assert metrics["eval_accuracy"] == plain["eval_accuracy"]
    assert metrics["eval_loss"] == pytest.approx(plain["eval_loss"])


def test_evaluation_without_loss_or_predictions(make_args: MakeArgs) -> None:
    class Silent(Classifier):
        def validation_step(self, batch: Any) -> Any:
            assert not self.training
            assert not torch.is_grad_enabled()

    rows = classification_rows(6)
    assert "eval_loss" not in Trainer(Silent(), make_args()).evaluate(rows)
    with pytest.raises(ValueError, match=r"Silent\.validation_step returns none"):
        Trainer(Silent(), make_args(), compute_metrics=accuracy).evaluate(rows)


def test_each_stage_has_its_step(make_args: MakeArgs) -> None:
    class Staged(Classifier):
        def validation_step(self, batch: Any) -> Any:
            calls.append("validation")
            return super().validation_step(batch)

        def test_step(self, batch: Any) -> Any:
            calls.append("test")
            return super().training_step(batch)

        def predict_step(self, batch: Any) -> Any:
            calls.append("predict")
            return super().predict_step(batch)["logits"].argmax(-1)

    calls: list[str] = []
    rows = classification_rows(6)
    trainer = Trainer(Staged(), make_args())
    trainer.evaluate(rows)
    assert set(trainer.test({"a": rows, "b": rows})) >= {"test_a_loss", "test_b_loss"}
    output = trainer.predict(rows)
    assert calls == ["validation", "test", "test", "predict"]
    assert output.predictions.shape == (6,)
    assert output.label_ids.tolist() == [int(row["labels"]) for row in rows]


def test_the_best_metric_may_be_a_logged_one(make_args: MakeArgs) -> None:
    class Counting(Classifier):
        def validation_step(self, batch: Any) -> Any:
            self.log("score", 1.0)
            return super().validation_step(batch)

    rows = classification_rows(8)
    options: dict[str, Any] = {"eval_strategy": "epoch", "num_train_epochs": 1}
    trainer = Trainer(Counting(), make_args(metric_for_best_model="score", **options), train_dataset=rows)
    trainer.fit(val=rows)
    assert trainer.state.best_metric == 1.0
    wrong = Trainer(Counting(), make_args(metric_for_best_model="scores", **options), eval_dataset=rows)
    with pytest.raises(ValueError, match="eval_scores"):
        wrong.fit(train=rows)


# ---- what is stored


def test_a_transformers_model_inside_is_saved_as_one(make_args: MakeArgs, tmp_path: Path) -> None:
    from transformers import BertForSequenceClassification

    class Sentences(Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = tiny_bert()

        def training_step(self, batch: Any) -> Any:
            return self.model(**batch).loss

    module = Sentences()
    trainer = Trainer(
        module, make_args(max_steps=2, save_strategy="steps", save_steps=2), train_dataset=sentence_rows()
    )
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    for folder in (tmp_path / "model", tmp_path / "run/checkpoint-2"):
        assert equal(BertForSequenceClassification.from_pretrained(folder), module.model)
    assert trainer.predict(sentence_rows(4)).predictions.shape == (4, 3)


def test_a_module_with_parts_of_its_own_is_saved_whole(make_args: MakeArgs, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    class Scaled(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(3))

    Trainer(Scaled(), make_args()).save_model(str(tmp_path / "model"))
    names = set(load_file(tmp_path / "model/model.safetensors"))
    assert names == {"scale", *(f"model.{name}" for name, _ in Plain().named_parameters())}


def test_a_causal_model_inside_counts_shifted_targets() -> None:
    class Language(Module):
        def __init__(self, with_more: bool) -> None:
            super().__init__()
            self.model = tiny_gpt2()
            if with_more:
                self.more = nn.Linear(1, 1)

    batch = {"labels": torch.tensor([[1, 2, 3], [4, 5, -100]])}
    assert TargetCounter(Language(False))(batch) == TargetCounter(Language(True))(batch) == 3
    assert Language(True).count_targets(batch) == 3


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [3, 4])
def test_a_resumed_module_goes_on_bit_for_bit(make_args: MakeArgs, tmp_path: Path, stop_at: int) -> None:
    class Noisy(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(6)

        def training_step(self, batch: Any) -> Any:
            x = F.dropout(self.norm(batch["x"]), 0.2, self.training)
            return F.cross_entropy(self.model.logits(x), batch["labels"])

    def trainer(name: str, module: Module, callbacks: list[Any] | None = None) -> Trainer:
        args = make_args(output_dir=str(tmp_path / name), max_steps=7, save_strategy="steps", save_steps=stop_at)
        return Trainer(module, args, train_dataset=classification_rows(20), callbacks=callbacks)

    whole, first, second = Noisy(), Noisy(), Noisy()
    trainer("whole", whole).train()
    trainer("cut", first, [StopAt(stop_at)]).train()
    trainer("cut", second).train(resume_from_checkpoint=str(tmp_path / f"cut/checkpoint-{stop_at}"))
    assert equal(whole, second)
    assert all(torch.equal(a, b) for a, b in zip(whole.buffers(), second.buffers(), strict=True))


def test_a_step_that_fails_is_undone_before_it_is_saved(make_args: MakeArgs, tmp_path: Path) -> None:
    class Normed(Module):
        fails = False
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))

        def training_step(self, batch: Any) -> Any:
            self.calls += 1
            self.log("drawn", torch.rand(()))
            loss = F.cross_entropy(self.model(batch["x"]), batch["labels"])
            if self.fails and self.calls == 4:
                raise RuntimeError("in step 4")
            return loss

    def trainer(name: str) -> Trainer:
        options: dict[str, Any] = {"max_steps": 6, "logging_steps": 6, "save_strategy": "steps", "save_steps": 50}
        args = make_args(output_dir=str(tmp_path / name), **options)
        return Trainer(Normed(), args, train_dataset=classification_rows(40))

    whole, failing, resumed = trainer("whole"), trainer("cut"), trainer("cut")
    whole.train()
    failing.model.fails = True  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="in step 4"):
        failing.train()
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.log_history[0] == whole.state.log_history[0]
    assert all(torch.equal(a, b) for a, b in zip(whole.model.buffers(), resumed.model.buffers(), strict=True))
    assert equal(whole.model, resumed.model)


# ---- options and mistakes


def test_compile_is_in_place_and_for_the_training_only(make_args: MakeArgs) -> None:
    rows = classification_rows(8)

    class Called(Classifier):
        def training_step(self, batch: Any) -> Any:
            seen.append(self.model._compiled_call_impl is not None)
            return self.model(**batch)["loss"]

    seen: list[bool] = []
    module = Called()
    args = make_args(max_steps=1, torch_compile=True, torch_compile_backend="eager")
    Trainer(module, args, train_dataset=rows).train()
    assert seen == [True]
    assert module.model._compiled_call_impl is None

    with pytest.raises(ValueError, match=r"compiles self\.model, and Tagger has none"):
        Trainer(Tagger(), args, train_dataset=rows).train()


def test_options_that_a_module_leaves_without_effect_are_refused(make_args: MakeArgs) -> None:
    with pytest.raises(ValueError, match="computes the loss itself"):
        Trainer(Classifier(), make_args(label_smoothing_factor=0.1))
    with pytest.raises(ValueError, match="computes the loss itself"):
        Trainer(Classifier(), make_args(), compute_loss_func=lambda outputs, labels: outputs)


def test_mistakes_in_a_module_are_named(make_args: MakeArgs) -> None:
    class Lossless(Classifier):
        def training_step(self, batch: Any) -> Any:
            return "nothing"

    class Backwards(Classifier):
        def training_step(self, batch: Any) -> Any:
            loss = super().training_step(batch)
            self.backward(loss)
            return loss

    rows = classification_rows(8)
    with pytest.raises(NotImplementedError, match="must define training_step"):
        Trainer(Module(), make_args(max_steps=1), train_dataset=rows, optimizers=_any_optimizer()).train()
    with pytest.raises(ValueError, match=r"Lossless\.training_step returned str"):
        Trainer(Lossless(), make_args(max_steps=1), train_dataset=rows).train()
    with pytest.raises(ValueError, match="automatic_optimization = False"):
        Trainer(Backwards(), make_args(max_steps=1), train_dataset=rows).train()
    with pytest.raises(ValueError, match=r"self\.optimizers\(\) works while a Trainer runs"):
        Classifier().optimizers()
    with pytest.raises(NotImplementedError, match=r"has no self\.model to call"):
        Tagger()(torch.zeros(1))


def _any_optimizer() -> tuple[Any, Any]:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), None


def test_a_subclass_may_change_the_loss_of_a_module(make_args: MakeArgs) -> None:
    class Doubled(Trainer):
        def compute_loss(  # type: ignore[override]
            self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any
        ) -> Any:
            return 2 * super().compute_loss(model, inputs)

    rows = classification_rows(8)
    options: dict[str, Any] = {"max_steps": 1, "logging_steps": 1}
    plain = Trainer(Classifier(), make_args(**options), train_dataset=rows)
    doubled = Doubled(Classifier(), make_args(**options), train_dataset=rows)
    plain.train(), doubled.train()
    assert doubled.state.log_history[0]["loss"] == pytest.approx(2 * plain.state.log_history[0]["loss"])
