"""Evaluation and prediction: what metrics receive, and what comes back."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
import torchmetrics
import transformers
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import IterableDataset

from tests.models import Plain, classification_rows, tiny_gpt2, token_rows
from trainwright import EvalPrediction, Trainer, TrainerCallback, TrainingArguments
from trainwright.core.errors import MissingMetricError

Make = Callable[..., TrainingArguments]
ROWS = classification_rows(11)
X = torch.stack([row["x"] for row in ROWS])
Y = torch.stack([row["labels"] for row in ROWS])


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    logits, labels = prediction
    return {"accuracy": float((logits.argmax(-1) == labels).mean())}


def expected_accuracy(model: Plain) -> float:
    return float((model.logits(X).argmax(-1) == Y).double().mean())


def test_compute_metrics_gets_whole_numpy_arrays(make_args: Make) -> None:
    seen: list[EvalPrediction] = []

    def keep(prediction: EvalPrediction) -> dict[str, Any]:
        seen.append(prediction)
        return {"numpy": np.float32(0.5), "tensor": torch.tensor(2), "named": 1.0, "eval_kept": 3}

    model = Plain().float()
    metrics = Trainer(model, make_args(per_device_eval_batch_size=4), compute_metrics=keep).evaluate(ROWS)
    (prediction,) = seen
    assert type(prediction.predictions) is type(prediction.label_ids) is np.ndarray
    assert prediction.predictions == pytest.approx(model.logits(X).detach().numpy(), abs=1e-6)
    assert prediction.label_ids.tolist() == Y.tolist()
    assert prediction.inputs is None
    assert prediction.losses is None
    assert {k: metrics[k] for k in ("eval_numpy", "eval_tensor", "eval_named", "eval_kept")} == {
        "eval_numpy": 0.5, "eval_tensor": 2, "eval_named": 1.0, "eval_kept": 3,
    }  # fmt: skip
    assert type(metrics["eval_numpy"]) is float
    assert type(metrics["eval_tensor"]) is int


def test_several_eval_sets_give_keys_with_their_names(make_args: Make) -> None:
    sets = {"short": ROWS[:3], "long": ROWS}
    args = make_args(max_steps=2, eval_strategy="steps", eval_steps=1, metric_for_best_model="long_loss")
    trainer = Trainer(Plain().float(), args, train_dataset=ROWS, eval_dataset=sets, compute_metrics=accuracy)
    trainer.train()
    metrics = trainer.evaluate()
    alone = trainer.evaluate(ROWS)
    assert metrics["eval_long_loss"] == pytest.approx(alone["eval_loss"])
    assert metrics["eval_long_accuracy"] == alone["eval_accuracy"]
    assert {"eval_short_loss", "eval_short_accuracy", "eval_short_runtime", "eval_long_samples_per_second"} <= set(
        metrics
    )
    logged = [log["eval_long_loss"] for log in trainer.state.log_history if "eval_long_loss" in log][:2]
    assert trainer.state.best_metric == min(logged)
    assert trainer.evaluate("short")["eval_loss"] == pytest.approx(metrics["eval_short_loss"])
    assert "eval_only_loss" in trainer.evaluate({"only": ROWS[:2]})
    with pytest.raises(ValueError, match="'other'; there are: \\['short', 'long'\\]"):
        trainer.evaluate("other")


def test_inputs_and_losses_reach_the_metric_when_asked_for(make_args: Make) -> None:
    seen: list[EvalPrediction] = []
    model = tiny_gpt2()
    rows = token_rows(5)
    args = make_args(include_for_metrics=["inputs", "loss"], per_device_eval_batch_size=2)
    Trainer(model, args, compute_metrics=lambda p: seen.append(p) or {}).evaluate(rows)
    _, _, inputs, losses = seen[0]
    assert inputs.tolist() == [row["input_ids"].tolist() for row in rows]
    assert losses.shape == (5,)
    with torch.no_grad():
        last = model(**{key: value[None] for key, value in rows[4].items()}).loss
    assert losses[4] == pytest.approx(float(last), rel=1e-5)
    assert losses[0] == losses[1] != losses[2]


def test_batch_metrics_are_summed_up_at_the_last_batch_only(make_args: Make) -> None:
    calls: list[tuple[int, bool]] = []
    hits = 0

    def metric(prediction: EvalPrediction, compute_result: bool) -> dict[str, float] | None:
        nonlocal hits
        assert isinstance(prediction.predictions, Tensor)
        calls.append((len(prediction.label_ids), compute_result))
        hits += int((prediction.predictions.argmax(-1) == prediction.label_ids).sum())
        return {"accuracy": hits / 11} if compute_result else None

    model = Plain().float()
    args = make_args(batch_eval_metrics=True, per_device_eval_batch_size=4)
    output = Trainer(model, args, compute_metrics=metric).predict(ROWS)
    assert calls == [(4, False), (4, False), (3, True)]
    assert output.metrics is not None
    assert output.metrics["test_accuracy"] == pytest.approx(expected_accuracy(model))
    with pytest.raises(ValueError, match="compute_result"):
        Trainer(model, args, compute_metrics=accuracy)


def test_torchmetrics_objects_stream(make_args: Make) -> None:
    model = Plain().float()
    args = make_args(per_device_eval_batch_size=4)
    alone = torchmetrics.Accuracy("multiclass", num_classes=3, average="micro")
    trainer = Trainer(model, args, compute_metrics=alone)
    for _ in range(2):  # the metric starts afresh each time
        assert trainer.evaluate(ROWS)["eval_multiclassaccuracy"] == pytest.approx(expected_accuracy(model))
    several = torchmetrics.MetricCollection(
        {"micro": alone, "f1": torchmetrics.F1Score("multiclass", num_classes=3, average="macro")}
    )
    metrics = Trainer(model, args, compute_metrics=several).evaluate(ROWS)
    expected = torchmetrics.F1Score("multiclass", num_classes=3, average="macro")(model.logits(X), Y)
    assert metrics["eval_micro"] == pytest.approx(expected_accuracy(model))
    assert metrics["eval_f1"] == pytest.approx(float(expected))


def test_logits_are_preprocessed_before_they_are_kept(make_args: Make) -> None:
    def best(logits: Tensor, labels: Tensor) -> Tensor:
        assert len(logits) == len(labels)
        return logits.argmax(-1)

    model = Plain().float()
    trainer = Trainer(
        model,
        make_args(per_device_eval_batch_size=4),
        preprocess_logits_for_metrics=best,
        compute_metrics=lambda p: {"accuracy": (p.predictions == p.label_ids).mean()},
    )
    output = trainer.predict(ROWS)
    assert output.predictions.tolist() == model.logits(X).argmax(-1).tolist()
    assert output.metrics is not None
    assert output.metrics["test_accuracy"] == pytest.approx(expected_accuracy(model))


def test_loss_only_keeps_nothing_and_calls_no_metric(make_args: Make) -> None:
    def never(prediction: EvalPrediction) -> dict[str, float]:
        raise AssertionError("prediction_loss_only")

    trainer = Trainer(Plain().float(), make_args(prediction_loss_only=True), compute_metrics=never)
    output = trainer.predict(ROWS)
    assert output.predictions is None
    assert output.label_ids is None
    assert output.metrics is not None
    assert output.metrics["test_loss"] > 0


def test_batches_may_be_left_apart(make_args: Make) -> None:
    sizes: list[list[int]] = []

    def metric(prediction: EvalPrediction) -> dict[str, float]:
        sizes.append([len(part) for part in prediction.predictions])
        return {}

    args = make_args(eval_do_concat_batches=False, per_device_eval_batch_size=4)
    output = Trainer(Plain().float(), args, compute_metrics=metric).predict(ROWS)
    assert sizes == [[4, 4, 3]]
    assert [len(part) for part in output.label_ids] == [4, 4, 3]


def ragged_rows(count: int = 7) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        length = 3 + (5 * index) % 7
        ids = [1 + (index * 3 + j) % 30 for j in range(length)]
        rows.append({"input_ids": ids, "attention_mask": [1] * length, "labels": ids, "length": length})
    return rows


def pad(features: list[dict[str, Any]]) -> dict[str, Tensor]:
    longest = max(len(row["input_ids"]) for row in features)
    fill = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    return {
        key: torch.tensor([row[key] + [value] * (longest - len(row[key])) for row in features])
        for key, value in fill.items()
    }


def test_ragged_outputs_are_padded_as_transformers_does(make_args: Make, tmp_path: Path) -> None:
    model = tiny_gpt2()
    rows = ragged_rows()
    common: dict[str, Any] = {"per_device_eval_batch_size": 2, "use_cpu": True, "disable_tqdm": True}
    args = transformers.TrainingArguments(str(tmp_path), report_to="none", **common)
    reference: Any = transformers.Trainer(copy.deepcopy(model), args, data_collator=pad)
    theirs = reference.predict(rows)
    ours = Trainer(model, make_args(**common), data_collator=pad).predict(rows)
    assert ours.predictions.shape == theirs.predictions.shape
    assert ours.predictions == pytest.approx(theirs.predictions, abs=1e-6)
    assert ours.label_ids.tolist() == theirs.label_ids.tolist()
    assert (ours.label_ids == -100).any()


def test_predictions_keep_the_datasets_order_when_lengths_are_grouped(make_args: Make) -> None:
    model = tiny_gpt2()
    rows = ragged_rows(9)
    seen: list[Any] = []
    args = make_args(
        train_sampling_strategy="group_by_length", per_device_eval_batch_size=2, include_for_metrics=["inputs"]
    )
    trainer = Trainer(model, args, data_collator=pad, compute_metrics=lambda p: seen.append(p) or {})
    output = trainer.predict(rows)
    plain = Trainer(model, make_args(per_device_eval_batch_size=9), data_collator=pad).predict(rows)
    assert output.label_ids.tolist() == plain.label_ids.tolist()
    for index, row in enumerate(rows):
        length = row["length"]
        assert output.predictions[index, :length] == pytest.approx(plain.predictions[index, :length], abs=1e-5)
    # What a metric that looks samples up in the dataset, such as one for question answering, needs.
    assert seen[0].label_ids.tolist() == plain.label_ids.tolist()
    assert [list(row[: len(r["input_ids"])]) for row, r in zip(seen[0].inputs, rows, strict=True)] == [
        row["input_ids"] for row in rows
    ]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from ROWS


def test_a_stream_without_a_length_is_evaluated(make_args: Make) -> None:
    model = Plain().float()
    trainer = Trainer(model, make_args(per_device_eval_batch_size=4), eval_dataset=Stream(), compute_metrics=accuracy)
    metrics = trainer.evaluate()
    assert metrics["eval_accuracy"] == pytest.approx(expected_accuracy(model))
    assert metrics["eval_loss"] == pytest.approx(F.cross_entropy(model.logits(X), Y).item(), rel=1e-6)
    assert trainer.predict(Stream()).predictions.shape == (11, 3)


def test_test_time_augmentation_averages(make_args: Make) -> None:
    model = Plain().float()

    def mirrored(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        inputs["x"] = inputs["x"].flip(-1)
        return inputs

    trainer = Trainer(model, make_args(per_device_eval_batch_size=4))
    output = trainer.predict(ROWS, test_time_augmentation=[lambda inputs: inputs, mirrored])
    expected = (model.logits(X) + model.logits(X.flip(-1))) / 2
    assert output.predictions == pytest.approx(expected.detach().numpy(), abs=1e-6)
    assert trainer.predict(ROWS).predictions == pytest.approx(model.logits(X).detach().numpy(), abs=1e-6)


METRIC_SCRIPT = """
import datasets
import evaluate


class HitRate(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        return {"hit_rate": sum(p == r for p, r in zip(predictions, references)) / len(references)}
"""


@pytest.mark.filterwarnings("ignore")
def test_a_local_evaluate_metric(make_args: Make, tmp_path: Path) -> None:
    import evaluate

    script = tmp_path / "hit_rate" / "hit_rate.py"
    script.parent.mkdir()
    script.write_text(METRIC_SCRIPT)
    metric = evaluate.load(str(script), cache_dir=str(tmp_path / "cache"))
    model = Plain().float()
    trainer = Trainer(
        model,
        make_args(per_device_eval_batch_size=4),
        compute_metrics=lambda p: metric.compute(predictions=p.predictions.argmax(-1), references=p.label_ids),
    )
    assert trainer.evaluate(ROWS)["eval_hit_rate"] == pytest.approx(expected_accuracy(model))


class CountSteps(TrainerCallback):
    steps = predictions = 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps += 1

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.predictions += 1


SETS = {"a": ROWS[:4], "b": ROWS[4:]}


@pytest.mark.parametrize(
    ("metric", "compute", "sets", "offered"),
    [
        ("accurracy", accuracy, ROWS, "eval_accuracy"),
        ("eval_f1", accuracy, ROWS, "eval_accuracy"),
        ("accuracy", None, ROWS, "eval_loss"),
        ("accuracy", accuracy, SETS, "eval_a_<metric>, eval_b_<metric>"),
        ("a_f1", accuracy, SETS, "eval_a_accuracy"),
        ("loss", None, SETS, "eval_a_loss, eval_b_loss"),
        ("f1", torchmetrics.Accuracy("multiclass", num_classes=3), ROWS, "eval_multiclassaccuracy"),
    ],
)
def test_a_missing_best_metric_is_found_before_the_first_step(
    make_args: Make, metric: str, compute: Any, sets: Any, offered: str
) -> None:
    args = make_args(
        max_steps=3,
        eval_strategy="steps",
        save_strategy="steps",
        load_best_model_at_end=True,
        metric_for_best_model=metric,
    )
    counter = CountSteps()
    trainer = Trainer(
        Plain().float(), args, train_dataset=ROWS, eval_dataset=sets, compute_metrics=compute, callbacks=[counter]
    )
    with pytest.raises(MissingMetricError, match="metric_for_best_model") as error:
        trainer.train()
    assert offered in str(error.value)
    assert counter.steps == counter.predictions == 0


def test_looking_ahead_for_the_metric_leaves_no_trace(make_args: Make) -> None:
    def weights(**kwargs: Any) -> dict[str, Tensor]:
        args = make_args(max_steps=3, eval_strategy="steps", eval_steps=3, **kwargs)
        model = Plain().float()
        model.first.register_forward_hook(lambda module, args, output: F.dropout(output, 0.5, module.training))
        trainer = Trainer(model, args, train_dataset=ROWS, eval_dataset=ROWS, compute_metrics=accuracy)
        trainer.train()
        assert "eval_accuracy" in trainer.state.log_history[-2]
        return model.state_dict()

    plain = weights()
    for name, value in weights(metric_for_best_model="accuracy").items():
        assert torch.equal(value, plain[name]), name


@pytest.mark.parametrize("size", [1, 2, 4, 8, 23])
def test_eval_loss_is_the_mean_over_all_targets(make_args: Make, size: int) -> None:
    model = tiny_gpt2()
    rows = token_rows(9, empty_row=True)
    with torch.no_grad():
        whole = model(**{key: torch.stack([row[key] for row in rows]) for key in rows[0]}).loss
    loss = Trainer(model, make_args(per_device_eval_batch_size=size)).evaluate(rows)["eval_loss"]
    assert loss == pytest.approx(float(whole), rel=1e-6)


def test_what_is_dropped_is_said_once(make_args: Make, caplog: pytest.LogCaptureFixture) -> None:
    plain: dict[str, list[Any]] = {name: [row[name].tolist() for row in ROWS] for name in ROWS[0]}
    data = datasets.Dataset.from_dict({**plain, "text": ["a"] * 11}).with_format("torch")
    other = datasets.Dataset.from_dict({**plain, "idx": list(range(11))}).with_format("torch")
    trainer = Trainer(Plain().float(), make_args(), eval_dataset=data)
    with caplog.at_level(logging.INFO, "trainwright"):
        for _ in range(2):
            trainer.evaluate()
            trainer.evaluate(other)
            trainer.evaluate([{**row, "mine": 1} for row in ROWS])
    said = [record.getMessage().split(":")[0] for record in caplog.records if "Dropping" in record.getMessage()]
    assert said == [f"Dropping {name} from the evaluation set" for name in ("text", "idx", "mine")]
