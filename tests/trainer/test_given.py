"""What a Trainer is given in another form, or in vain, is said when it is built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.mistakes.material import Net, classifier, samples
from trainwright import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def arguments(**settings: Any) -> TrainingArguments:
    usual: dict[str, Any] = {"max_steps": 2, "use_cpu": True, "report_to": "none", "save_strategy": "no"}
    return TrainingArguments("out", **(usual | {"disable_tqdm": True, "per_device_train_batch_size": 4} | settings))


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"train_dataset": "t.csv"}, "train_dataset must hold samples, and 't.csv' is text: read the file first"),
        ({"eval_dataset": Path("t.csv")}, "eval_dataset must hold samples, and 't.csv' is text"),
        ({"eval_dataset": {"a": 5}}, r"eval_dataset\['a'\] must hold samples, and 5 is a number"),
        ({"data_collator": "pad"}, "data_collator must be a function .*, not 'pad'"),
        (
            {"callbacks": EarlyStoppingCallback(2)},
            r"callbacks must be a list, not EarlyStoppingCallback: .*=\[\.\.\.\]",
        ),
        ({"optimizers": sgd(Net())}, r"optimizers must be a pair .*, not SGD: write optimizers=\(optimizer, None\)"),
    ],
)
def test_an_argument_of_another_form_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        Trainer(Net(), arguments(), **given)
    assert not Path("out").exists()


def test_an_optimizer_of_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match=r"holds none of the 2 parameters of the model .* SGD\(model.parameters\(\)"):
        Trainer(Net(), arguments(), train_dataset=samples(), optimizers=(sgd(Net()), None))


def _of_a_part(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([model.layer.bias, torch.nn.Parameter(torch.ones(1))], lr=0.1)  # type: ignore


@pytest.mark.parametrize("make", [sgd, _of_a_part])
def test_an_optimizer_of_a_part_of_the_model_is_taken(make: Callable[[torch.nn.Module], Any]) -> None:
    model = Net()
    trainer = Trainer(model, arguments(), train_dataset=samples(), optimizers=(make(model), None))
    assert trainer.train().global_step == 2


def test_a_loss_of_ones_own_may_train_what_is_no_part_of_the_model() -> None:
    prompt = torch.nn.Parameter(torch.zeros(4))

    class Prompted(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            return model(inputs["x"] + prompt).square().mean()

    optimizer = torch.optim.SGD([prompt], lr=0.1)
    Prompted(Net(), arguments(), train_dataset=samples(), optimizers=(optimizer, None)).train()
    assert prompt.abs().sum() > 0


def test_a_misspelled_event_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    class Own(TrainerCallback):
        def on_epoch_ends(self, *args: Any, **kwargs: Any) -> None: ...
        def on_evaluate_end(self, *args: Any, **kwargs: Any) -> None: ...
        def on_step_end(self, *args: Any, **kwargs: Any) -> None: ...
        def on_my_own_account(self) -> None: ...

    Trainer(Net(), arguments(), train_dataset=samples(), callbacks=[Own()]).train()
    said = [record.getMessage() for record in caplog.records if "is no event" in record.getMessage()]
    assert said == [
        "Own.on_epoch_ends is no event, so nobody calls it: did you mean on_epoch_end?",
        "Own.on_evaluate_end is no event, so nobody calls it: did you mean on_evaluate?",
    ]


def test_a_warmup_that_never_ends_is_said(caplog: pytest.LogCaptureFixture) -> None:
    Trainer(Net(), arguments(warmup_steps=2), train_dataset=samples()).train()
    assert "never reaches" not in caplog.text
    Trainer(Net(), arguments(warmup_steps=1000), train_dataset=samples()).train()
    assert caplog.text.count("warmup_steps=1000, and the training has 2: the learning rate never reaches") == 1


def test_an_empty_evaluation_set_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    settings = arguments(eval_strategy="steps", eval_steps=1)
    Trainer(Net(), settings, train_dataset=samples(), eval_dataset=[]).train()
    assert caplog.text.count("eval_dataset has no samples, so its evaluations say nothing") == 1


def test_words_as_labels_of_the_evaluation_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    settings = arguments(eval_strategy="steps", eval_steps=1)
    Trainer(Net(), settings, train_dataset=samples(), eval_dataset=samples(labels="positive")).train()
    assert caplog.text.count("The labels in 'labels' of the evaluation data are words ('positive'") == 1


def test_metrics_that_are_never_computed_are_said(caplog: pytest.LogCaptureFixture) -> None:
    data = [{"x": torch.ones(4), "target": i % 2} for i in range(8)]
    Trainer(Net(), arguments(), eval_dataset=data, compute_metrics=lambda prediction: {"accuracy": 0.5}).evaluate()
    assert "compute_metrics is not called: the evaluation data have no labels, only x, target" in caplog.text


@pytest.mark.parametrize("every", [1, 2])
def test_an_error_in_an_evaluation_names_the_evaluation_data(every: int) -> None:
    data = [{"input_ids": [1, 2], "label": i % 2} for i in range(16)]
    wrong = [{"input_ids": [1, 2], "label": 7} for _ in range(4)]
    settings = arguments(eval_strategy="steps", eval_steps=every)
    with pytest.raises(IndexError, match="out of bounds") as error:
        Trainer(classifier(), settings, train_dataset=data, eval_dataset=wrong).train()
    assert error.value.__notes__[0].startswith(
        "trainwright: this was in an evaluation, of evaluation data and not of training data. Label 7 of sample 0"
    )


def test_an_error_in_compute_metrics_is_not_blamed_on_the_data() -> None:
    def broken(prediction: Any) -> dict[str, float]:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as error:
        Trainer(Net(), arguments(), eval_dataset=samples(), compute_metrics=broken).evaluate()
    assert not getattr(error.value, "__notes__", [])


def test_a_callback_that_refuses_the_arguments_is_not_followed_by_a_word_about_the_report(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ValueError, match="EarlyStoppingCallback needs metric_for_best_model"):
        Trainer(Net(), arguments(), train_dataset=samples(), callbacks=["early_stopping"]).train()
    assert "report could not be written" not in caplog.text
