"""A first step that fails is explained, with the error attached; one that goes well leaves nothing behind.

What each mistake is told is in ``tests/mistakes``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.mistakes.material import classifier
from trainwright import Trainer, TrainerCallback, TrainingArguments
from trainwright.training import train as training
from trainwright.training.first_step.scene import Scene
from trainwright.training.first_step.targets import explain_labels_on_a_device
from trainwright.training.first_step.watch import FirstStep


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def rows(count: int = 16, **other: Any) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    return [{"x": torch.randn(4), "labels": torch.tensor(i % 2), **other} for i in range(count)]


def arguments(folder: Path, **settings: Any) -> TrainingArguments:
    usual: dict[str, Any] = {"report_to": "none", "max_steps": 3, "save_strategy": "no", "use_cpu": True}
    usual |= {"per_device_train_batch_size": 4, "train_sampling_strategy": "sequential", "disable_tqdm": True}
    return TrainingArguments(str(folder), **(usual | settings))


def trainer(folder: Path, data: Any, model: nn.Module | None = None, **more: Any) -> Trainer:
    torch.manual_seed(1)
    return Trainer(model or Net(), arguments(folder, **more), train_dataset=data)


def test_the_original_error_stays_attached(tmp_path: Path) -> None:
    data = rows()
    data[2]["labels"] = torch.tensor(7)
    with pytest.raises(ValueError, match=r"Label 7 of sample 2 in the first batch .* 2 classes") as error:
        trainer(tmp_path, data).train()
    assert isinstance(error.value.__cause__, IndexError)


def test_it_says_which_of_several_batches(tmp_path: Path) -> None:
    data = rows()
    data[5]["labels"] = torch.tensor(7)
    with pytest.raises(ValueError, match="Label 7 of sample 1 in batch 1 of the first step"):
        trainer(tmp_path, data, gradient_accumulation_steps=2).train()


def test_later_steps_are_not_explained(tmp_path: Path) -> None:
    data = rows()
    data[9]["labels"] = torch.tensor(7)
    with pytest.raises(IndexError, match="out of bounds"):
        trainer(tmp_path, data).train()


def test_an_error_of_the_users_own_stays_what_it_is(tmp_path: Path) -> None:
    class Own(Net):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine") as error:
        trainer(tmp_path, rows(), Own()).train()
    assert error.value.__cause__ is None
    assert "in the forward of the model itself (Own)" in error.value.__notes__[0]


def test_a_compute_loss_of_ones_own_may_call_the_model_as_it_likes(tmp_path: Path) -> None:
    class Pairs(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            model(inputs["left"])
            raise RuntimeError("mine")

    data = [{"left": torch.randn(4), "right": torch.randn(4)} for _ in range(8)]
    with pytest.raises(RuntimeError, match=r"^mine"):
        Pairs(Net(), arguments(tmp_path, remove_unused_columns=False), train_dataset=data).train()


def test_ignored_labels_are_in_range(tmp_path: Path) -> None:
    data = rows()
    data[0]["labels"] = torch.tensor(-100)
    assert trainer(tmp_path, data).train().global_step == 3


def test_nothing_of_it_is_there_from_the_second_step_on(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Look(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            run = one._setup.run
            assert run is not None
            seen.append(run.observe_step)

    one = trainer(tmp_path, rows())
    one.add_callback(Look())
    one.train()
    assert isinstance(seen[0], FirstStep)
    assert seen[1:] == [None, None]
    assert seen[0]._batches == []


def test_it_changes_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing:
        def __init__(self, run: Any) -> None: ...
        def end(self) -> None: ...

    def weights() -> list[Tensor]:
        one = trainer(tmp_path, rows(), nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)))
        one.train_dataset = [(row["x"], row["labels"]) for row in rows()]
        one.train()
        return [parameter.detach().clone() for parameter in one.model.parameters()]

    watched = weights()
    monkeypatch.setattr(training, "FirstStep", Nothing)
    assert all(map(torch.equal, watched, weights()))


def test_metrics_are_tried_before_the_first_step_where_one_of_them_decides(tmp_path: Path) -> None:
    steps: list[int] = []

    class Count(Net):
        def forward(self, x: Tensor) -> Tensor:
            steps.append(self.training)
            return super().forward(x)

    settings: dict[str, Any] = {"eval_strategy": "epoch", "metric_for_best_model": "accuracy"}
    one = Trainer(Count(), arguments(tmp_path, **settings), train_dataset=rows(), eval_dataset=rows())
    one._setup.compute_metrics = lambda prediction: 0.5
    with pytest.raises(ValueError, match=r"compute_metrics returned float \(0.5\), and must return a dict"):
        one.train()
    assert not any(steps)


def test_a_loss_of_ones_own_with_classes_along_another_dimension(tmp_path: Path) -> None:
    class Pixels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(1, 3, 1)

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            outputs = self.layer(x)
            return {"loss": F.cross_entropy(outputs, labels), "logits": outputs}

    labels = torch.zeros(2, 2, dtype=torch.long)
    labels[1, 0] = 3
    data = [{"x": torch.randn(1, 2, 2), "labels": labels}] * 8
    with pytest.raises(ValueError, match=r"Label 3 of sample 0, position 1, 0 in the first batch .* 3 classes"):
        trainer(tmp_path, data, Pixels()).train()


def test_a_gpu_that_failed_is_not_asked_for_the_label(tmp_path: Path) -> None:
    """There a later kernel fails, as a RuntimeError about something else (seen: CUBLAS_STATUS_EXECUTION_FAILED)."""
    one = trainer(tmp_path, rows())
    setup = SimpleNamespace(
        model=one.model,
        args=SimpleNamespace(device=torch.device("cuda")),
        label_names=["labels"],
        hooks=one._setup.hooks,
    )
    batch = {"x": torch.zeros(4, 4), "labels": torch.tensor([0, 1, 5, 0])}
    scene = Scene(cast(Any, setup), [batch], RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"), [])
    assert (explain_labels_on_a_device(scene) or "").startswith(
        "Label 5 of sample 2 in the first batch is out of range"
    )
    fine = replace(scene, batches=[{**batch, "labels": torch.tensor([0, 1, 1, 0])}])
    assert explain_labels_on_a_device(fine) is None


def test_one_label_for_whole_numbers_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = [{"input_ids": [1, 2], "label": i % 2} for i in range(16)]
    one = Trainer(classifier(num_labels=1), arguments(tmp_path), train_dataset=data)
    assert one.train().global_step == 3
    assert "num_labels=1 makes BertForSequenceClassification predict a number" in caplog.text


def _own_head(model: Any) -> Any:
    from transformers import BertForSequenceClassification

    class OwnForSequenceClassification(BertForSequenceClassification):
        def forward(self, input_ids: Any = None, labels: Any = None, **other: Any) -> Any:
            outputs = super().forward(input_ids=input_ids)
            outputs.loss = F.mse_loss(outputs.logits[:, 0], labels.float())
            return outputs

    return OwnForSequenceClassification(model.config)


def _patched(model: Any) -> Any:
    usual = model.forward
    model.forward = lambda input_ids, labels: usual(input_ids=input_ids, labels=labels // 5)
    return model


def _hooked(model: Any) -> Any:
    def halved(module: Any, given: Any, named: Any) -> Any:
        return given, {**named, "labels": named["labels"] // 5}

    model.register_forward_pre_hook(halved, with_kwargs=True)
    return model


def _wider_head(model: Any) -> Any:
    model.classifier, model.num_labels = nn.Linear(8, 10), 10
    return model


@pytest.mark.parametrize("changed", [_own_head, _patched, _hooked, _wider_head])
def test_labels_are_left_to_a_classifier_that_somebody_changed(tmp_path: Path, changed: Any) -> None:
    data = [{"input_ids": [1, 2], "label": i % 10} for i in range(16)]
    model = changed(classifier(num_labels=2))
    assert Trainer(model, arguments(tmp_path), train_dataset=data).train().global_step == 3


def test_labels_are_left_to_a_trainer_that_changes_them_on_their_way(tmp_path: Path) -> None:
    class Halved(Trainer):
        def _prepare_inputs(self, inputs: Any) -> Any:
            return {**super()._prepare_inputs(inputs), "labels": inputs["labels"] // 5}

    data = [{"input_ids": [1, 2], "label": i % 10} for i in range(16)]
    assert Halved(classifier(num_labels=2), arguments(tmp_path), train_dataset=data).train().global_step == 3


def test_a_classifier_as_transformers_made_it_is_still_refused_before_the_step(tmp_path: Path) -> None:
    data = [{"input_ids": [1, 2], "label": i % 3} for i in range(16)]
    with pytest.raises(ValueError, match="Label 2 of sample 2 in the first batch is out of range") as error:
        Trainer(classifier(num_labels=2), arguments(tmp_path), train_dataset=data).train()
    assert error.value.__cause__ is None
