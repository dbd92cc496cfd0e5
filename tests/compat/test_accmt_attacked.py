"""What an attack on ACCMT's door found: results that were wrong, lost or silently left out."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import BatchSampler, SequentialSampler, default_collate

from tests.compat.accmt_modules import Accuracy, Latest, Shared, hyper, make, samples
from trainwright.checkpoint.models import ModelFolder
from trainwright.compat.accmt import Callback, Evaluator, HyperParameters, Metric, MetricBatch, RatioCurriculum, Trainer
from trainwright.compat.accmt.__main__ import main
from trainwright.compat.accmt.hp_search import HyperParameterSearch
from trainwright.compat.accmt.samplers import TemperatureSampler
from trainwright.compat.accmt.strategies import names, settings_of
from trainwright.config.warnings import TrainwrightWarning


def status(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "status.json").read_text())


# ---- saving


def test_a_resume_with_other_savings_gives_each_its_own_best(tmp_path: Path) -> None:
    def fitted(epochs: int, *modes: str, resume: bool = False) -> Trainer:
        options: dict[str, Any] = {"metrics": Accuracy("accuracy"), "model_saving": list(modes), "resume": resume}
        trainer = make(tmp_path, hyper(epochs=epochs), **options)
        trainer.fit(Latest(), samples(), samples(20, 1))
        return trainer

    before = {one.mode: one.best or 0.0 for one in fitted(1, "best_valid_loss", "best_accuracy")._kept}
    after = {one.mode: one.best or 0.0 for one in fitted(2, "best_accuracy", "best_valid_loss", resume=True)._kept}
    assert after["best_valid_loss"] <= before["best_valid_loss"]
    assert 1.0 >= after["best_accuracy"] >= before["best_accuracy"]
    assert status(tmp_path / "model/best_accuracy")["additional_metrics"]["accuracy"] == after["best_accuracy"]


def test_a_file_in_the_models_place_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("my only copy")
    module = Shared()
    with pytest.raises(ValueError, match="is a file"):
        make(tmp_path).fit(module, samples())
    assert (tmp_path / "model").read_text() == "my only copy"
    assert not module.seen


def test_the_evaluation_before_the_first_step_keeps_nothing(tmp_path: Path) -> None:
    class Worse(Latest):
        def training_step(self, batch: Any) -> Any:
            return -super().training_step(batch)

    make(tmp_path, hyper(epochs=1), eval_when_start=True).fit(Worse(), samples(), samples(20, 1))
    assert status(tmp_path / "model")["global_step"] == 7


def test_a_loss_that_is_no_number_is_never_the_best(tmp_path: Path) -> None:
    class FirstNaN(Latest):
        def validation_step(self, key: Any, batch: Any) -> Any:
            found = super().validation_step(key, batch)
            return {"loss": found["loss"] * (torch.nan if self.state.evaluations_done == 0 else 1.0)}

    trainer = make(tmp_path, hyper(epochs=3))
    trainer.fit(FirstNaN(), samples(), samples(20, 1))
    assert trainer.status_dict["best_valid_loss"] > 0


def test_the_ways_out_that_messages_name_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: ModelFolder, model: Any, status: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(ModelFolder, "save", refuses)
    trainer = make(tmp_path, take_over=True)
    with pytest.raises(ValueError, match=r"fit\(\)"):
        trainer.save_model(tmp_path / "early")
    with pytest.raises(RuntimeError, match=r"trainer\.save_model\(folder\)"):
        trainer.fit(Shared(), samples())
    trainer.save_model(tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere/model.safetensors").is_file()


# ---- validation


def test_validation_with_a_batch_sampler_has_its_own_collate_function(tmp_path: Path) -> None:
    calls: list[str] = []

    def of(name: str) -> Any:
        return lambda rows: (calls.append(name), default_collate(rows))[1]

    data = samples(8, 1)
    batches = BatchSampler(SequentialSampler(data), 4, False)
    options = {"collate_fn_train": of("train"), "collate_fn_val": of("val"), "batch_sampler_val": batches}
    for sets in (data, {"a": data}):
        calls.clear()
        make(tmp_path, hyper(epochs=1), **options).fit(Latest(), samples(8), sets)
        assert (calls.count("train"), calls.count("val")) == (2, 2)


def test_an_evaluation_leaves_the_model_in_its_mode(tmp_path: Path) -> None:
    modes: list[bool] = []

    class Watched(Latest):
        def training_step(self, batch: Any) -> Any:
            modes.append(self.model.training)
            return super().training_step(batch)

    module = Watched()

    class Looks(Callback):
        def on_after_backward(self) -> None:
            if len(modes) == 2:
                self.trainer.evaluate_on_validation(module, samples(9, 5), results_output=None, verbose=False)

    make(tmp_path, callbacks=Looks(), metrics=Accuracy("accuracy")).fit(module, samples(), samples(20, 1))
    assert len(modes) == 14
    assert all(modes)
    module.model.train()
    evaluator = Evaluator(metrics=Accuracy("accuracy"), batch_size=8)
    evaluator.evaluate(module, samples(9), "validation_step", results_output=None, verbose=False)
    assert module.model.training


# ---- metrics


class SaysLoss(Metric):
    def compute(self, predictions: Any, references: Any) -> dict[str, Any]:  # type: ignore[override]
        return {"accuracy": 0.5, "loss": 99.0}


TWO = {"a": samples(8, 1), "a_b": samples(8, 2)}


@pytest.mark.parametrize(
    ("metrics", "sets", "why"),
    [
        ({"nope": Accuracy("accuracy")}, [samples(8, 1), samples(8, 2)], "nope"),
        ([Accuracy("accuracy"), SaysLoss("accuracy")], samples(8, 1), "two of the name 'accuracy'"),
        ([Accuracy("a", main_metric="x"), Accuracy("x")], samples(8, 1), "two of the name 'x'"),
        (Accuracy("loss"), samples(8, 1), "'loss'"),
        (Accuracy("val_loss"), samples(8, 1), "'val_loss'"),
        (Accuracy("runtime"), samples(8, 1), "'runtime'"),
        (Accuracy("b_accuracy"), TWO, "'b_accuracy'"),
        (None, {1: samples(8, 1), "1": samples(8, 2)}, "rename one"),
    ],
)
def test_metrics_that_could_not_act_are_refused_before_the_first_step(
    metrics: Any, sets: Any, why: str, tmp_path: Path
) -> None:
    module = Latest()
    with pytest.raises(ValueError, match=why):
        make(tmp_path, metrics=metrics).fit(module, samples(), sets)
    assert module.keys == []


@pytest.mark.parametrize("key", [0, "0"])
def test_a_set_of_a_list_is_known_by_its_number_or_its_text(key: Any, tmp_path: Path) -> None:
    trainer = make(tmp_path, hyper(epochs=1), metrics={key: Accuracy("accuracy")})
    trainer.fit(Latest(), samples(), [samples(8, 1), samples(7, 2)])
    assert trainer.status_dict["additional_metrics"]["0"]["count"] == 8
    assert "1" not in trainer.status_dict["additional_metrics"]


def test_a_metrics_loss_is_not_the_validation_loss(tmp_path: Path) -> None:
    trainer = make(tmp_path, hyper(epochs=1), metrics=SaysLoss("accuracy"), verbose=True)
    with pytest.warns(TrainwrightWarning, match="accuracy_loss"):
        trainer.fit(Latest(), samples(), samples(8, 1))
    assert trainer.status_dict["validation_loss"] < 50
    assert trainer.status_dict["additional_metrics"] == {"accuracy": 0.5, "accuracy_loss": 99.0}


def test_numbers_beside_the_loss_are_weighted_as_it_is(tmp_path: Path) -> None:
    class Share(MetricBatch):
        def compute(self, predictions: Any, references: Any) -> dict[str, Any]:  # type: ignore[override]
            return {"share": (predictions == references).float().mean()}

    class Again(Latest):
        def validation_step(self, key: Any, batch: Any) -> Any:
            x, y = batch
            logits = self.model(x)
            loss = F.cross_entropy(logits, y)
            return {"loss": loss, "again": loss.detach(), "share": (logits.argmax(-1), y)}

    module, data = Again(), samples(20, 1)
    trainer = make(tmp_path, hyper(epochs=1, batch_size=[8, 19]), metrics=Share("share"))
    trainer.fit(module, samples(), data)
    found = trainer.status_dict["additional_metrics"]
    assert found["again"] == pytest.approx(trainer.status_dict["validation_loss"])
    x, y = data.tensors
    assert found["share"] == pytest.approx((module.model(x).argmax(-1) == y).float().mean().item())


# ---- values


def test_a_distribution_in_a_file(tmp_path: Path) -> None:
    data = [(0, 0)] * 30 + [(0, 1)] * 10

    def shares(name: str, text: str) -> float:
        (tmp_path / name).write_text(text)
        weights = TemperatureSampler(data, 1.0, tmp_path / name).weights
        return float(weights[:30].sum() / weights.sum())

    assert shares("a.json", '{"0": 20, "1": 20}') == pytest.approx(0.5)
    assert shares("a.csv", "0,1e3\n1,1000\n") == pytest.approx(0.5)
    assert shares("b.csv", "label,count\n0,+20\n1, 20\n") == pytest.approx(0.5)
    for name, text in (("c.csv", "0,5\n1,many\n"), ("d.json", '{"0": 0, "1": 0}'), ("e.json", '{"0": -1, "1": 2}')):
        with pytest.raises(ValueError, match="distribution"):
            shares(name, text)


@pytest.mark.parametrize("rate", [True, "on", "fast", "nan", "-1", None, [0.1]])
def test_a_wrong_learning_rate_is_named(rate: Any) -> None:
    with pytest.raises(ValueError, match="lr="):
        HyperParameters(optim="SGD", optim_kwargs={"lr": rate})


def test_a_stage_without_steps_is_named(tmp_path: Path) -> None:
    stages = RatioCurriculum()
    stages.add(samples(8), ratio=0.1)
    stages.add(samples(8, 1), ratio=0.9)
    with pytest.warns(TrainwrightWarning, match="Stage 0"):
        assert [stage.steps for stage in stages.stages(4)] == [0, 4]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [stage.steps for stage in stages.stages(10)] == [1, 9]


def test_an_argument_in_a_file_and_beside_it_is_said_twice(tmp_path: Path) -> None:
    config = {"trainer": {"model_path": str(tmp_path / "m"), "sampler": None}, **hyper()}
    with pytest.raises(ValueError, match="sampler stands there"):
        Trainer.from_config(config, sampler=lambda indices: indices)


def test_only_strategies_that_run_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["strats"]) == 0
    assert "fsdp-fp16" not in capsys.readouterr().out
    assert all(settings_of(name) for name in names())
    with pytest.raises(ValueError, match="fsdp-bf16"):
        settings_of("fsdp-fp16")


def test_a_search_in_which_nothing_was_a_number_says_so() -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    class NotANumber(Shared):
        def step(self, batch: Any) -> Any:
            return super().step(batch) * (1.0 if torch.is_grad_enabled() else torch.nan)

    search = HyperParameterSearch(NotANumber, samples(8), samples(8, 1), verbose=False)
    search.set_parameters(train_batch_size=4, learning_rate=[1e-3, 1e-2])
    with pytest.raises(ValueError, match="None of 2 trials gave a number"):
        search.optimize(n_trials=2)
