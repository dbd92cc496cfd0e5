"""MindNLP's document, followed on MindSpore: its complete example, and every parameter that it names."""

from __future__ import annotations

import copy
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

mindspore = pytest.importorskip("mindspore")

from tests.engines.contract.engines import Dense, close, rows, same_weights  # noqa: E402
from tests.engines.contract.zoo import bert  # noqa: E402
from trainwright import Trainer, TrainingArguments  # noqa: E402

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.mindspore, pytest.mark.xdist_group("mindnlp")]


class Followed(NamedTuple):
    """What the two commands of docs/from-mindnlp.md left behind."""

    folder: Path
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    folder, home = tmp_path_factory.mktemp("cwd"), tmp_path_factory.mktemp("home")
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    written = []
    for script in ("prepare.py", "train.py"):
        command = [sys.executable, str(ROOT / "examples" / "mindnlp" / script), "runs/reviews"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        written.append(done)
    return Followed(folder, written[-1].stdout, written[-1].stderr)


def test_the_example_learns_on_mindspore(followed: Followed) -> None:
    found = re.search(r"engine: mindspore accuracy: (\S+)", followed.stdout)
    assert found is not None, followed.stdout
    assert float(found[1]) > 0.8


def test_its_checkpoints_are_models_of_transformers(followed: Followed) -> None:
    from transformers import AutoModelForSequenceClassification

    results = followed.folder / "runs" / "reviews" / "results"
    saved = sorted(path.name for path in results.glob("checkpoint-*"))
    assert saved == ["checkpoint-25", "checkpoint-50", "checkpoint-75"]
    weights = [AutoModelForSequenceClassification.from_pretrained(results / name).state_dict() for name in saved]
    moved = [name for name, value in weights[0].items() if not torch.equal(value, weights[-1][name])]
    assert "classifier.weight" in moved


def test_logging_dir_is_where_tensorboard_looks(followed: Followed) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = events.EventAccumulator(str(followed.folder / "runs" / "reviews" / "logs"))
    found.Reload()
    assert {"train/loss", "train/learning_rate", "eval/accuracy"} <= set(found.Tags()["scalars"])
    assert [event.step for event in found.Scalars("eval/accuracy")][:3] == [25, 50, 75]


def test_nothing_else_is_written_or_said(followed: Followed) -> None:
    assert [path.name for path in followed.folder.iterdir()] == ["runs"]
    assert [path.name for path in (followed.folder / "runs").iterdir()] == ["reviews"]
    assert "[WARNING]" not in followed.stderr, followed.stderr[-3000:]


# ---- through the door, in this process


@pytest.fixture
def _door() -> Iterator[None]:
    from trainwright.compat import mindnlp

    mindnlp.open_door()
    yield
    mindnlp.close()


def run(folder: Path, model: Any = None, data: Any = None, resume: str | None = None, **options: Any) -> Trainer:
    quiet: dict[str, Any] = {
        "num_train_epochs": 1,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 5,
        "learning_rate": 0.02,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    args = TrainingArguments(str(folder), **{**quiet, **options})
    given = copy.deepcopy(model) if model is not None else Dense()
    trainer = Trainer(given, args, train_dataset=data or rows(12), eval_dataset=rows(7))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def logged(trainer: Trainer, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.usefixtures("_door")
@pytest.mark.parametrize(
    "options",
    [
        {"learning_rate": 0.05},
        {"weight_decay": 0.5},
        {"adam_beta1": 0.5},
        {"adam_beta2": 0.5},
        {"adam_epsilon": 0.1},
        {"max_grad_norm": 0.01, "optim": "sgd"},
        {"gradient_accumulation_steps": 3, "num_train_epochs": 3},
        {"per_device_train_batch_size": 2},
    ],
    ids=lambda options: next(iter(options)),
)
def test_optimizer_parameters_act_as_with_torch(options: dict[str, Any], tmp_path: Path) -> None:
    found = run(tmp_path / "mindspore", **options)
    expected = run(tmp_path / "torch", engine="torch", **options)
    assert found.args.engine == "mindspore"
    assert close(logged(found, "loss"), logged(expected, "loss"))
    assert close(logged(found, "grad_norm"), logged(expected, "grad_norm"))
    same_weights(dict(found.model.state_dict()), dict(expected.model.state_dict()), 1e-5)
    plain = run(tmp_path / "plain", engine="torch", **{name: options[name] for name in ("optim",) if name in options})
    assert not torch.allclose(*(dict(each.model.state_dict())["second.weight"] for each in (found, plain)), atol=1e-4)


@pytest.mark.usefixtures("_door")
@pytest.mark.parametrize(("strategy", "times"), [("no", 0), ("steps", 3), ("epoch", 2)])
def test_strategies(strategy: str, times: int, tmp_path: Path) -> None:
    # 6 steps in 2 epochs
    steps = {"eval_steps": 2, "save_steps": 2, "logging_steps": 2}
    names = ("eval_strategy", "save_strategy", "logging_strategy")
    trainer = run(tmp_path, num_train_epochs=2, **steps, **dict.fromkeys(names, strategy))
    assert len(logged(trainer, "eval_loss")) == len(logged(trainer, "loss")) == times
    assert len(list(tmp_path.glob("checkpoint-*"))) == times


@pytest.mark.usefixtures("_door")
def test_resume_from_a_path(tmp_path: Path) -> None:
    whole = run(tmp_path, num_train_epochs=2, save_strategy="steps", save_steps=2)
    resumed = run(tmp_path, num_train_epochs=2, resume=str(tmp_path / "checkpoint-2"))
    same_weights(dict(resumed.model.state_dict()), dict(whole.model.state_dict()))
    assert close(logged(resumed, "loss"), logged(whole, "loss"), 1e-6)


@pytest.mark.usefixtures("_door")
@pytest.mark.parametrize("option", ["fp16", "bf16", "gradient_checkpointing"])
def test_advanced_features_act(option: str, tmp_path: Path) -> None:
    made: tuple[Any, Any] = bert()
    model, data = made
    found = run(tmp_path / "on", model, data, max_steps=4, learning_rate=1e-3, **dict[str, Any]({option: True}))
    plain = run(tmp_path / "off", model, data, max_steps=4, learning_rate=1e-3)
    assert found.args.engine == "mindspore"
    assert close(logged(found, "loss"), logged(plain, "loss"), 1e-5 if option == "gradient_checkpointing" else 2e-2)
    if option != "gradient_checkpointing":
        assert logged(found, "loss") != logged(plain, "loss")


@pytest.mark.usefixtures("_door")
def test_ms_dtype_gives_a_model_in_that_precision(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    made: tuple[Any, Any] = bert()
    untrained, data = made
    untrained.save_pretrained(tmp_path / "bert")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "bert", ms_dtype=mindspore.float16)
    assert model.dtype == torch.float16
    trainer = run(tmp_path / "run", model, data, max_steps=4, learning_rate=1e-3)
    assert all(math.isfinite(loss) for loss in logged(trainer, "loss"))
    assert all(bool(torch.isfinite(value).all()) for value in trainer.model.parameters())
    # Steps that are not finite would be left out, and the weights be what they were.
    assert all(math.isfinite(norm) for norm in logged(trainer, "grad_norm"))
    before, after = untrained.state_dict(), trainer.model.state_dict()
    assert not torch.equal(after["classifier.weight"], before["classifier.weight"].half())
    assert trainer.model.dtype == torch.float16
