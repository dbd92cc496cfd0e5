"""What every engine does alike: evaluation, prediction, saved models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.engines.contract.engines import Dense, Lively, arguments, close, feature, rows, same_weights, train
from tests.engines.contract.zoo import bert, gpt2
from trainwright import Trainer
from trainwright.core.results import PredictionOutput
from trainwright.engines.graph.engine import GraphEngine


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def loss_of(output: PredictionOutput) -> float:
    assert output.metrics is not None
    return output.metrics["test_loss"]


@feature("evaluate and predict, before, while and after training; compute_metrics; the last, smaller batch")
def test_evaluation_and_prediction(engine: str, tmp_path: Path) -> None:
    results = []
    for name in ("torch", engine):
        torch.manual_seed(0)
        args = arguments(tmp_path / name, name, eval_strategy="steps", eval_steps=2)
        trainer = Trainer(Lively(), args, train_dataset=rows(16), eval_dataset=rows(10), compute_metrics=accuracy)
        before = trainer.evaluate()
        trainer.train()
        after, predicted = trainer.evaluate(), trainer.predict(rows(7))
        logs = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
        results.append((before["eval_loss"], after["eval_loss"], after["eval_accuracy"], logs, predicted))
    expected, found = results
    assert close([found[0], found[1], *found[3]], [expected[0], expected[1], *expected[3]])
    assert found[2] == expected[2]
    np.testing.assert_allclose(found[4].predictions, expected[4].predictions, rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(found[4].label_ids, expected[4].label_ids)
    assert close([loss_of(found[4])], [loss_of(expected[4])])


@feature("texts of many lengths: padded to a few, each compiled once; predictions have the length they should")
def test_lengths(engine: str, tmp_path: Path) -> None:
    model, data = gpt2()
    model.eval()
    lengths = [5, 7, 11, 3, 16, 9, 12, 4]
    cut = [{name: value[:length] for name, value in row.items()} for row, length in zip(data, lengths, strict=False)]
    results = []
    for name in ("torch", engine):
        args = arguments(tmp_path / name, name, per_device_eval_batch_size=1, per_device_train_batch_size=1)
        trainer = Trainer(model, args, eval_dataset=cut)
        results.append((trainer.predict(cut), trainer))
    (expected, _), (found, trainer) = results
    assert found.predictions.shape == expected.predictions.shape
    for one, other, length in zip(found.predictions, expected.predictions, lengths, strict=True):
        np.testing.assert_allclose(one[: length - 1], other[: length - 1], rtol=1e-3, atol=1e-4)
    assert close([loss_of(found)], [loss_of(expected)])
    if isinstance(trainer.engine, GraphEngine):
        assert trainer.engine.shapes_compiled == 1


@feature("save_model and from_pretrained")
def test_saved_models(engine: str, tmp_path: Path) -> None:
    from transformers import BertForSequenceClassification

    model, data = bert()
    done = train(tmp_path / "run", engine, model, data, max_steps=2)
    done.trainer.save_model(str(tmp_path / "saved"))
    read = BertForSequenceClassification.from_pretrained(tmp_path / "saved")
    same_weights(dict(read.state_dict()), done.weights())
    assert not torch.equal(read.classifier.weight, model.get_parameter("classifier.weight"))


@feature("a loss of one's own: compute_loss_func, compute_loss, label smoothing")
def test_own_losses(engine: str, tmp_path: Path) -> None:
    class Doubled(Trainer):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            loss = torch.nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum")
            loss = 2 * loss / num_items_in_batch
            return (loss, outputs) if return_outputs else loss

    def summed(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        return torch.nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch

    ways: list[tuple[type[Trainer], dict[str, Any], dict[str, Any]]] = [
        (Doubled, {}, {}),
        (Trainer, {"compute_loss_func": summed}, {}),
        (Trainer, {}, {"label_smoothing_factor": 0.1}),
    ]
    for number, (kind, given, options) in enumerate(ways):
        weights = []
        for name in ("torch", engine):
            args = arguments(tmp_path / f"{number}{name}", name, max_steps=3, **options)
            trainer = kind(Dense(), args, train_dataset=rows(), **given)
            trainer.train()
            weights.append(dict(trainer.model.state_dict()))
        same_weights(weights[1], weights[0], 1e-5)
