"""What users of ACCMT get wrong: it is named before the first step, and nothing that was said is dropped."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tests.compat.accmt_modules import Shared, checkpoints, hyper, samples
from trainwright.compat.accmt import (
    AcceleratorModule,
    Callback,
    HyperParameters,
    Metric,
    Monitor,
    StepsCurriculum,
    TensorBoard,
    Trainer,
)

WRONG: list[tuple[str, Any]] = [
    ("log_every", "5"),
    ("log_every", 2.5),
    ("clip_grad", "much"),
    ("clip_grad", float("nan")),
    ("model_saving_below", "0.5"),
    ("model_saving_above", float("nan")),
    ("max_checkpoints", "3"),
    ("patience", True),
    ("resume", "latest"),
    ("set_to_none", 2),
    ("compile", "reduce-overhead"),
    ("shuffle_train", None),
    ("safe_serialization", "safetensors"),
    ("checkpoint", ""),
    ("checkpoint", 5),
    ("track_name", 5),
    ("max_shard_size", "huge"),
    ("train_loss_metric_name", ""),
    ("train_loss_metric_name", "val_loss"),
    ("dataloader_num_workers", None),
    ("metrics", "accuracy"),
    ("monitor", {"monitor": None}),
    ("run_name", 5),
    ("tags", {"a": 1}),
    ("tags", 5),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=[f"{name}={value!r}" for name, value in WRONG])
def test_a_wrong_value_is_named_at_once(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=name):
        Trainer(hyper(), str(tmp_path / "m"), **{name: value})


def test_what_would_do_nothing_is_refused(tmp_path: Path) -> None:
    place = str(tmp_path / "m")
    with pytest.raises(ValueError, match=r"model_saving_below=0\.5 does nothing without model_saving"):
        Trainer(hyper(), place, model_saving=None, model_saving_below=0.5)
    with pytest.raises(ValueError, match="name its tracker in log_with"):
        Trainer(hyper(), place, logging_dir="http://localhost:5000")
    with pytest.raises(ValueError, match="tensorboard has none"):
        Trainer(hyper(), place, logging_dir="localhost:5000", log_with=TensorBoard)
    with pytest.raises(ValueError, match="did you mean 'tags'"):
        Trainer(hyper(), place, tag=["x"], log_with=TensorBoard)


def test_words_of_yaml_are_booleans(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "hps:\n  epochs: 1\n  step_scheduler_per_epoch: no\n"
        "  optim: {type: SGD, lr: 1e-1, momentum: 0.9, nesterov: yes}\n"
        f"trainer:\n  model_path: {tmp_path / 'm'}\n  shuffle_train: no\n  resume: no\n"
    )
    hps = HyperParameters.from_config(str(file))
    assert (hps.optim_kwargs["nesterov"], hps.step_scheduler_per_epoch) == (True, False)
    settings = Trainer.from_config(str(file))._settings
    assert (settings.shuffle_train, settings.resume) == (False, False)
    assert Monitor.from_config({"learning_rate": "yes"}).learning_rate is True


def test_a_name_and_tags_need_no_tracker(tmp_path: Path) -> None:
    trainer = Trainer(hyper(), str(tmp_path / "m"), run_name="first", tags="small", verbose=False)
    trainer.fit(Shared(), samples())
    assert trainer._native is not None
    assert (trainer._native.args.run_name, trainer._native.args.tags) == ("first", ["small"])


def test_ways_of_saving_in_any_case_and_once(tmp_path: Path) -> None:
    ways = ["BEST_VALID_LOSS", "best_valid_loss"]
    Trainer(hyper(), str(tmp_path / "m"), model_saving=ways, verbose=False).fit(Shared(), samples(), samples())
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["best_valid_loss"]


class Bare(AcceleratorModule):
    """Trains and does not validate."""

    def __init__(self) -> None:
        self.model = Shared().model

    def training_step(self, batch: Any) -> Any:
        return F.cross_entropy(self.model(batch[0]), batch[1])


class Returns(Bare):
    """Validates by what it is told."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def validation_step(self, batch: Any) -> Any:
        return self.value


def test_data_that_is_none(tmp_path: Path) -> None:
    curriculum = StepsCurriculum()
    curriculum.add(samples(), steps=-1)
    mistakes: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("val_dataset is empty", (Shared(), samples(), []), {}),
        ("names no data set", (Shared(), samples(), {}), {}),
        (r"val_dataset\['b'\] must be a data set, not a int", (Shared(), samples(), {"a": samples(), "b": 5}), {}),
        ("train_dataset must be a data set, not a int", (Shared(), 5), {}),
        ("has no validation_step", (Bare(), samples(), samples()), {}),
        ("a curriculum has several", (Shared(), curriculum), {"sampler": [0, 1]}),
        ("sampler='random' must be", (Shared(), samples()), {"sampler": "random"}),
        ("fit takes", (("name",), samples()), {}),
    ]
    for said, given, options in mistakes:
        trainer = Trainer(hyper(max_steps=4), str(tmp_path / "m"), verbose=False, **options)
        with pytest.raises(ValueError, match=said):
            trainer.fit(*given)
        assert trainer.status_dict["global_step"] == 0


def test_a_loader_has_its_own_order_and_collator(tmp_path: Path) -> None:
    trainer = Trainer(hyper(), str(tmp_path / "m"), sampler=[0, 1])
    with pytest.warns(match="sampler do not act on a DataLoader"):
        trainer.fit(Shared(), DataLoader(samples(), batch_size=4))


def test_a_validation_loss_may_be_a_number_and_nothing_else(tmp_path: Path) -> None:
    trainer = Trainer(hyper(), str(tmp_path / "m"), verbose=False)
    trainer.fit(Returns(0.5), samples(), samples())
    assert trainer.status_dict["best_valid_loss"] == 0.5
    with pytest.raises(ValueError, match="validation step returned a tuple"):
        trainer.fit(Returns((torch.ones(()), torch.ones(()))), samples(), samples())


class Count(Metric):
    def compute(self, values: Any) -> dict[str, Any]:  # type: ignore[override]
        return {"count": len(values)}


def test_validation_without_a_loss_is_counted_and_said_to_save_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(hyper(), str(tmp_path / "m"), metrics=Count("count"), verbose=False)
    trainer.fit(Returns({"count": torch.ones(1)}), samples(), {"a": samples(), "b": samples()})
    assert trainer.status_dict["evaluations_done"] == 2
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert said.startswith(f"No model is saved in {tmp_path / 'm'}: evaluations give no eval_a_loss")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Adadelta", "Adagrad", "Adafactor", "ASGD", "Rprop", "LBFGS"])
def test_one_cycle_with_optimizers_that_have_no_momentum(name: str, tmp_path: Path) -> None:
    hps = hyper(optim={"type": name, "lr": 0.01}, scheduler={"type": "OneCycleLR", "max_lr": 0.1})
    assert Trainer(hps, str(tmp_path / "m"), verbose=False).fit(Shared(), samples()).global_step > 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scheduler": {"type": "OneCycleLR"}}, "scheduler OneCycleLR: .*max_lr"),
        ({"scheduler": {"type": "LinearWithWarmup", "warmup_ratio": "x"}}, "warmup_ratio='x'"),
        ({"optim": {"type": "AdamW", "lr": "fast"}}, "optimizer AdamW"),
        ({"epochs": float("inf")}, "epochs=inf must be"),
    ],
)
def test_values_of_optimizers_and_schedules(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        Trainer(hyper(**change), str(tmp_path / "m"), verbose=False).fit(Shared(), samples())


def test_the_last_checkpoint_by_evaluations_is_written_once(tmp_path: Path) -> None:
    saved: list[int] = []

    class Saves(Callback):
        def on_save_checkpoint(self) -> None:
            saved.append(self.state.global_step)

    options = {"checkpoint_every": "2 evals", "callbacks": Saves(), "verbose": False}
    last = Trainer(hyper(epochs=2), str(tmp_path / "model"), **options).fit(Shared(), samples(), samples()).global_step
    assert saved == [last]
    assert checkpoints(tmp_path) == [f"checkpoint-{last}"]


def test_verbose_silences_the_constructor_too(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Trainer(hyper(), str(tmp_path / "m"), safe_mode=True, verbose=False)


@pytest.mark.full
def test_verbose_silences_what_services_print(tmp_path: Path) -> None:
    script = (
        "from tests.compat.accmt_modules import Shared, hyper, samples\n"
        "from trainwright.compat.accmt import *\n"
        "log_with = [TensorBoard, WandB, CometML, Aim, MLFlow, ClearML, DVCLive]\n"
        "Trainer(hyper(), 'm', log_with=log_with, verbose=False).fit(Shared(), samples(), samples())\n"
    )
    root = str(Path(__file__).parents[2])
    home = {"HOME": str(tmp_path), "PYTHONPATH": root, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=home, capture_output=True, text=True, timeout=120, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert (tmp_path / "logs/m/clearml").is_dir()
