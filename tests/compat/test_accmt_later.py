"""What ACCMT's own tests and examples use of its later versions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.compat.accmt_modules import Accuracy, Latest, Shared, checkpoints, hyper, make, network, samples
from trainwright.compat import accmt
from trainwright.compat.accmt import (
    AcceleratorModule,
    Evaluator,
    HyperParameters,
    HyperParameterSearch,
    Metric,
    Trainer,
)
from trainwright.compat.accmt.callbacks import Callback
from trainwright.compat.accmt.collate_fns import DataCollatorWithPadding
from trainwright.compat.accmt.curriculum import RangeCurriculum, RatioCurriculum, StepsCurriculum
from trainwright.compat.accmt.decorators import on_last_process, on_main_process, on_process
from trainwright.compat.accmt.samplers import CustomBatchSampler, TemperatureSampler
from trainwright.compat.accmt.states import TrainingState


def by_steps(steps: int) -> HyperParameters:
    return HyperParameters(max_steps=steps, batch_size=2, optimizer="AdamW", optim_kwargs={"lr": 0.01})


class Measures(AcceleratorModule):
    """Loses as its script says, and gives a number of its own, which no Metric asks for."""

    def __init__(self, losses: list[float], scores: list[float] | None = None) -> None:
        self.model: nn.Module = network()
        self.losses, self.scores, self.last_batches = list(losses), list(scores or losses), []  # type: ignore[var-annotated]
        self.done = 0

    def training_step(self, batch: Any) -> Any:
        return F.cross_entropy(self.model(batch[0]), batch[1])

    def after_eval(self) -> None:
        self.done += 1

    def validation_step(self, key: str, batch: Any) -> Any:
        self.last_batches.append(self.state.is_last_validation_batch)
        place = min(self.done, len(self.losses) - 1)
        return {
            "loss": torch.tensor(self.losses[place]),
            "score": torch.full((len(batch[0]),), self.scores[place]),
            "own": torch.tensor(float(len(batch[0]))),
        }


class Score(Metric):
    def compute(self, values: Tensor) -> dict[str, Any]:  # type: ignore[override]
        return {"score": values.mean()}


# ---- processes


def test_the_only_process_is_first_and_last(monkeypatch: pytest.MonkeyPatch) -> None:
    process = accmt.accelerator
    assert (process.num_processes, process.process_index, process.is_main_process) == (1, 0, True)
    assert process.gather(torch.ones(2)).tolist() == [1, 1]
    process.wait_for_everyone()
    with process.main_process_first():
        assert process.mixed_precision == "no"
    with pytest.raises(AttributeError, match=r"trainer\.accelerator"):
        process.save_state()
    first, last = on_main_process(lambda: "first"), on_last_process(lambda: "last")
    third = on_process(lambda: "third", 2)
    decorated = on_process(process_index=2)(lambda: "third")
    assert [first(), last(), third(), decorated()] == ["first", "last", None, None]
    for name, value in (("RANK", "2"), ("LOCAL_RANK", "2"), ("WORLD_SIZE", "3")):
        monkeypatch.setenv(name, value)
    assert [first(), last(), third(), decorated()] == [None, "last", "third", "third"]
    assert list(accmt.tqdm(range(2))) == [0, 1]
    assert accmt.tqdm(range(2)).disable


def test_a_decorated_callback_hears(tmp_path: Path) -> None:
    class Told(Callback):
        steps = 0

        @on_main_process
        def on_after_training_step(self) -> None:
            self.steps += 1

    told = Told()
    make(tmp_path, callbacks=[told]).fit(Shared(), samples())
    assert told.steps == 14


def test_small_things_of_utils() -> None:
    from trainwright.compat.accmt import utility, utils

    assert utility.RANK == utils.RANK == 0
    assert utils.prepare([1, 2], 3) == [[1, 2], 3]
    assert [utils.get_array_partition(list(range(10)), 3, part) for part in range(3)] == [
        [0, 1, 2, 3],
        [4, 5, 6],
        [7, 8, 9],
    ]
    assert utils.get_number_and_unit("1000B") == (1000, "B")
    assert utils.filter_kwargs({"weight": 1, "other": 2}, lambda weight: None) == {"weight": 1}
    assert not utils.is_url("not a url/")
    with torch.random.fork_rng():
        torch.seed()
        assert utils.get_seed() is None
        assert utils.get_seed(default=3) == 3
        utils.set_seed(5)
        assert utils.get_seed() == 5


# ---- curricula


@pytest.mark.slow
def test_the_index_of_the_data_set_counts_to_the_end(tmp_path: Path) -> None:
    seen: list[int] = []

    class Watching(Shared):
        def step(self, batch: Any) -> Any:
            seen.append(self.state.train_dataloader_idx)
            return super().step(batch)

    steps, ratios, ranges = StepsCurriculum(), RatioCurriculum(), RangeCurriculum()
    for share in (2, 2, -1):
        steps.add(samples(6), share, {"shuffle": False})
    for ratio in (0.1, 0.2, 0.3, 0.4, -1):
        ratios.add(samples(6), ratio)
    for start in (0, 5):
        ranges.add(samples(6), range(start, start + 5))
    listed = [(2, samples(6), {"shuffle": False}), (5, samples(6)), (-1, samples(6))]
    for number, data in enumerate((steps, ratios, ranges, listed)):
        trainer = make(tmp_path / str(number), by_steps(10), grad_accumulation_steps=2)
        trainer.fit(Watching(), data)
        assert trainer.state.finished
        assert trainer.state.train_dataloader_idx == len(data)
        assert isinstance(trainer.state, TrainingState)
    assert Counter(seen[:20]) == {0: 4, 1: 4, 2: 12}
    with pytest.warns(match="the ratios of the others add up to 1"):
        assert [stage.steps for stage in ratios.stages(10)] == [1, 2, 3, 4, 0]


# ---- saving


def kept(trainer: Trainer, name: str) -> int:
    return json.loads((trainer.model_path / name / "status.json").read_text())["global_step"]


@pytest.mark.slow
def test_registered_savings(tmp_path: Path) -> None:
    trainer = make(tmp_path, hyper(epochs=4), metrics=[Score("score")])
    trainer.register_model_saving("best_valid_loss@0")
    trainer.register_model_saving("score", saving_above=0.25)
    trainer.register_model_saving("best_score/valid_loss@0")
    trainer.register_model_saving("best_train_loss")
    # Both improve in the first and the third epoch only.
    trainer.fit(Measures([4.0, 3.0, 2.0, 9.0], [0.2, 0.1, 0.3, 0.9]), samples(), samples(6))
    names = ["best_score", "best_score__valid_loss@0", "best_train_loss", "best_valid_loss@0"]
    assert sorted(path.name for path in trainer.model_path.iterdir()) == names
    assert [kept(trainer, name) for name in names if name != "best_train_loss"] == [28, 21, 21]
    assert trainer.state.patience_left == dict.fromkeys(
        ["best_valid_loss@0", "best_score", "best_score/valid_loss@0", "best_train_loss"], -1
    )
    wrong = make(tmp_path)
    wrong.register_model_saving("best_valid_loss@x")
    with pytest.raises(ValueError, match="no validation set 'x'"):
        wrong.fit(Measures([1.0]), samples(), samples(6))
    with pytest.raises(ValueError, match="saving_above='a' must be a number"):
        trainer.register_model_saving("score", saving_above="a")  # type: ignore[arg-type]


@pytest.mark.slow
def test_patience_is_lost_by_all_and_needs_no_saving(tmp_path: Path) -> None:
    trainer = make(tmp_path, hyper(epochs=9), metrics=Score("score"), patience=2, disable_model_saving=True)
    trainer.register_model_saving("valid_loss")
    trainer.register_model_saving("score")
    losses = [3.0, 2.0, 1.0, 2.0, 2.0, 2.0, 0.0]
    assert trainer.fit(Measures(losses, [1.0] * 7), samples(), samples(6)).global_step == 5 * 7
    assert trainer.state.patience_left == {"best_valid_loss": 0, "best_score": 0}
    assert not trainer.model_path.exists()


@pytest.mark.slow
def test_two_at_once_survive_a_resume(tmp_path: Path) -> None:
    def trainer(epochs: int, **options: Any) -> Trainer:
        made = make(tmp_path, hyper(epochs=epochs), metrics=Score("score"), **options)
        made.register_model_saving("score/valid_loss")
        return made

    trainer(1).fit(Measures([1.0], [0.5]), samples(), samples(6))
    again = trainer(2, resume=-1)
    # The loss is better than the first and the score is not.
    again.fit(Measures([0.5], [0.4]), samples(), samples(6))
    assert checkpoints(tmp_path) == ["checkpoint-14"]
    assert kept(again, "best_score__valid_loss") == 7


# ---- validation


def test_a_number_without_a_metric_is_logged(tmp_path: Path) -> None:
    module = Measures([0.5])
    trainer = make(tmp_path, hyper(epochs=1), metrics=Score("score"))
    trainer.fit(module, samples(), samples(6))
    # Batches of 4 and 2, each with the weight of its samples.
    mean = pytest.approx((4 * 4 + 2 * 2) / 6)
    assert trainer.status_dict["additional_metrics"]["own"] == mean
    assert trainer.state.additional_metrics == {"0": {"valid_loss": 0.5, "score": 0.5, "own": mean}}
    assert module.last_batches == [False, True]


def test_gradient_checkpointing_without_the_hook_warns(tmp_path: Path) -> None:
    with pytest.warns(match="Linear has no gradient_checkpointing_enable"):
        make(tmp_path, hyper(epochs=1), gradient_checkpointing=True, verbose=True).fit(Shared(), samples())


def test_the_evaluator_measures_by_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    class Tested(Latest):
        def test_step(self, batch: Any) -> Any:  # type: ignore[override]
            return {"accuracy": (batch[1], batch[1])}

        def another(self, batch: Any) -> Any:
            return {"loss": torch.tensor(2.0)}

    evaluator = Evaluator(metrics=Accuracy("accuracy"), batch_size=4)
    found = evaluator.evaluate(Tested(), samples(10), verbose=False)
    assert found == {"accuracy": 1.0, "count": 10.0} == json.loads(Path("results.json").read_text())
    assert evaluator.evaluate_on_validation(Tested(), samples(10), results_output=None)["accuracy"] < 1
    assert Evaluator().evaluate(Tested(), samples(10), "another", None) == {"loss": 2.0}
    with pytest.raises(ValueError, match="no method 'missing'"):
        evaluator.evaluate(Tested(), samples(10), "missing")


def test_an_evaluation_leaves_the_training_alone(tmp_path: Path) -> None:
    trainer = make(tmp_path, hyper(epochs=1), metrics=Accuracy("accuracy"), model_saving="best_accuracy")
    trainer.fit(Latest(), samples(), samples(6))
    more = {"batch_size": 2, "metrics": [], "num_workers": 0, "collate_fn": torch.utils.data.default_collate}
    assert set(trainer.evaluate_on_validation(Shared(), samples(9), None, **more)) == {"val_loss", "loss"}
    assert trainer.state.global_step == 7
    assert trainer.state.finished


# ---- data


def test_temperature_makes_classes_equal(tmp_path: Path) -> None:
    data = [(0.0, torch.tensor(int(number < 10))) for number in range(100)]
    shares = {}
    for temperature in (1, 1000):
        sampler = TemperatureSampler(data, temperature, seed=1)
        drawn = []
        for epoch in range(20):
            sampler.set_epoch(epoch)
            drawn += [index < 10 for index in sampler]
        shares[temperature] = sum(drawn) / len(drawn)
    assert shares[1] == pytest.approx(0.1, abs=0.03)
    assert shares[1000] == pytest.approx(0.5, abs=0.05)
    table = tmp_path / "classes.csv"
    table.write_text("class,count\n0,90\n1,10\n")
    counted = TemperatureSampler(data, 5, target_format=lambda sample: sample[1])
    assert torch.equal(TemperatureSampler(data, 5, distribution=str(table)).weights, counted.weights)
    with pytest.raises(ValueError, match="no class 1"):
        TemperatureSampler(data, 5, distribution={0: 90})
    with pytest.raises(ValueError, match="JSON, YAML or CSV"):
        TemperatureSampler(data, 5, distribution="classes.pkl")


@pytest.mark.slow
def test_samplers_of_the_door_in_a_training(tmp_path: Path) -> None:
    class Pairs(CustomBatchSampler):
        def __init__(self) -> None:
            super().__init__()
            self.epochs: list[int] = []

        def __iter__(self) -> Iterator[list[int]]:
            return iter([[0, 1], [2, 3], [4, 5]])

        def __len__(self) -> int:
            return 3

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    data, pairs, module = samples(), Pairs(), Shared()
    assert make(tmp_path / "a", batch_sampler_train=pairs).fit(module, data).global_step == 6
    assert torch.cat(module.seen).tolist() == [*data.tensors[0][:6, 0].tolist()] * 2
    assert set(pairs.epochs) >= {0, 1}
    measured = Shared()
    make(tmp_path / "b", batch_sampler_val=[[0], [1]]).fit(measured, data, samples(6))
    assert measured.validated == 4

    def run(folder: Path, epochs: int, **options: Any) -> list[Tensor]:
        module = Shared()
        sampler = TemperatureSampler(data, 100, seed=3)
        make(folder, hyper(epochs=epochs), sampler=sampler, **options).fit(module, data)
        return module.seen

    whole = run(tmp_path / "whole", 2)
    parts = [*run(tmp_path / "parts", 1), *run(tmp_path / "parts", 2, resume=True)]
    assert torch.equal(torch.cat(whole), torch.cat(parts))


def test_collators_look_inside() -> None:
    class Pads:
        def pad(self, features: Any, **options: Any) -> Any:
            longest = max(len(feature["input_ids"]) for feature in features)
            rows = [[*feature["input_ids"], *[0] * (longest - len(feature["input_ids"]))] for feature in features]
            return {"input_ids": torch.tensor(rows)}

    collate = DataCollatorWithPadding(Pads())
    first, other = collate([({"text": {"input_ids": [1]}}, 1.0), ({"text": {"input_ids": [2, 3]}}, 2.0)])
    assert first["text"]["input_ids"].tolist() == [[1, 0], [2, 3]]
    assert other.tolist() == [1.0, 2.0]


# ---- debugging and searching


@pytest.mark.slow
@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_debug_levels(level: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, hyper(epochs=1)).fit(Shared(), samples(), samples(6))
    before = sorted(path.name for path in (tmp_path / "checkpoint-model").iterdir())
    monkeypatch.setenv("ACCMT_DEBUG_MODE", str(level))
    module = Shared()
    trainer = make(
        tmp_path, log_with="tensorboard", logging_dir=str(tmp_path / "logs"), compile=level > 1, eval_when_start=True
    )
    trainer.fit(module, samples(), samples(6))
    assert not (tmp_path / "logs").exists()
    assert trainer._native is not None
    assert not trainer._native.args.torch_compile
    after = sorted(path.name for path in (tmp_path / "checkpoint-model").iterdir())
    assert (after == before) == (level >= 3)
    assert module.validated == {4: 4, 5: 0}.get(level, 6)
    assert len(module.seen) == 14


def test_a_level_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCMT_DEBUG_MODE", "9")
    with pytest.raises(ValueError, match="the levels are 1, 2, 3, 4, 5"):
        make(tmp_path)


@pytest.mark.slow
def test_a_search_finds_the_better_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    search = HyperParameterSearch(Latest, samples(), samples(8), [Accuracy("accuracy")], verbose=False)
    with pytest.raises(ValueError, match="set_parameters"):
        search.optimize()
    with pytest.raises(ValueError, match="Nothing is searched"):
        search.set_parameters(learning_rate=0.1)
    search.set_parameters(train_batch_size=8, epochs=[1, 2], learning_rate=(1e-9, 0.3))
    study = search.optimize(n_trials=5)
    assert study.best_params["learning_rate"] == 0.3
    assert "Best value" in capsys.readouterr().out
    assert search.optimize(lambda found: found["0"]["accuracy"], "maximize", 1).best_value <= 1


# ---- trackers


@pytest.mark.slow
def test_mlflow_gets_tags_description_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.chdir(tmp_path)
    store = f"sqlite:///{tmp_path / 'store.db'}"
    Path("notes.txt").write_text("notes")
    Path("more").mkdir()
    Path("more/other.txt").write_text("other")
    described = {"run_name": "first", "tags": {"a": "b"}, "description": "what it is"}
    trainer = make(tmp_path, hyper(epochs=1), log_with="mlflow", logging_dir=store, track_name="ours", **described)
    trainer.log_artifact("notes.txt")
    trainer.log_artifacts("more")
    with pytest.raises(ValueError, match=r"no file or folder none\.txt"):
        trainer.log_artifact("none.txt")
    trainer.fit(Shared(), samples())
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("ours")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert (run.data.tags["a"], run.data.tags["mlflow.note.content"]) == ("b", "what it is")
    assert {"notes.txt", "other.txt"} <= {file.path for file in client.list_artifacts(run.info.run_id)}
    assert "train_loss" in run.data.metrics
    again = make(tmp_path / "b", hyper(epochs=1), log_with="mlflow", logging_dir=store, run_id=run.info.run_id)
    again.fit(Shared(), samples())
    assert len(client.search_runs([experiment.experiment_id])) == 1
