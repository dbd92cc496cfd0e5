"""Losses in an experiment's file and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

from trainwright import CrossEntropyLoss, FocalLoss
from trainwright.cli.app import app
from trainwright.config.errors import ConfigError
from trainwright.config.loading import load_experiment
from trainwright.experiment.building import build
from trainwright.experiment.running import evaluate, train
from trainwright.experiment.stored import load_stored


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A table of three kinds, one of them rare."""
    numbers = torch.randn(48, 2, generator=torch.Generator().manual_seed(0)).tolist()
    kinds = ["none" if i % 8 == 0 else "many" if i % 2 else "few" for i in range(48)]
    lines = [f"{a:.4f},{b:.4f},{kind}" for (a, b), kind in zip(numbers, kinds, strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,kind", *lines]) + "\n")
    described: dict[str, Any] = {
        "name": "kinds",
        "model": {
            "name": "mlp",
            "options": {"width": 8},
            "loss": {"name": "focal", "gamma": 2.0, "class_weights": "balanced"},
        },
        "data": {"train": "table.csv", "target": "kind", "holdout": 0.25},
        "training": {"output_dir": str(tmp_path / "run"), "num_train_epochs": 2, "learning_rate": 1e-2},
    }
    file = tmp_path / "kinds.yaml"
    file.write_text(yaml.safe_dump(described, sort_keys=False))
    return file


def built_loss(file: Path, *words: str) -> Any:
    return build(load_experiment(file, words)).trainer.compute_loss_func


def test_a_file_names_a_loss_with_options(written: Path) -> None:
    loss = built_loss(written)
    assert isinstance(loss, FocalLoss)
    assert loss.gamma == 2.0
    changed = built_loss(written, "model.loss.gamma=1.5")
    assert changed.gamma == 1.5
    assert changed.counts_labels
    # One word replaces all of it, and may be given options after.
    plain = built_loss(written, "model.loss=cross_entropy")
    assert isinstance(plain, CrossEntropyLoss)
    assert not plain.counts_labels
    smoothed = built_loss(written, "model.loss=cross_entropy", "--model.loss.smoothing", "0.1")
    assert smoothed.smoothing == 0.1
    assert built_loss(written, "model.loss={name: cross_entropy, class_weights: [1, 2, 3]}").class_weights.values == [
        1.0,
        2.0,
        3.0,
    ]


def test_balanced_weights_come_from_the_rows_that_are_trained_on_and_stay_with_the_run(written: Path) -> None:
    trained = train(load_experiment(written), say=lambda line: None)
    facts = json.loads((trained.folder / "preprocessing.json").read_text())["facts"]
    built = build(load_experiment(written))
    labels = [int(row["labels"]) for row in built.prepared.train]
    expected = [len(labels) / (3 * labels.count(one)) for one in range(3)]
    assert facts["loss_weights"] == pytest.approx(expected)
    assert max(expected) > 1.5
    # Evaluated later, without the data that it was trained on: the same loss.
    logged = [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    best = min(entry["eval_loss"] for entry in logged if "eval_loss" in entry)
    assert evaluate(trained.folder)["eval_loss"] == pytest.approx(best, rel=1e-5)
    # Written either way, it is the same experiment; with another gamma it is another.
    assert load_stored(trained.folder, [], trust=False).experiment.model.loss == {
        "name": "focal",
        "gamma": 2.0,
        "class_weights": "balanced",
    }
    with pytest.raises(ConfigError, match=r"model.loss.gamma"):
        train(load_experiment(written, ["model.loss.gamma=1.0"]), say=lambda line: None)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["model.loss.gama=1"], r"command line: model.loss.gama: there is no option 'gama' \(did you mean 'gamma'\?\)"),
        (["model.loss.gamma=-1"], "command line: model.loss.gamma: gamma=-1 should be a number, at least 0"),
        (["model.loss=focl"], r"command line: model.loss: there is no loss 'focl' \(did you mean 'focal'\?\)"),
        (["model.loss={gamma: 1}"], "model.loss: it needs the name of a loss"),
        (["model.loss.class_weights=[1, 2]"], "has 2 numbers, and the outputs have 3 classes"),
        (["model.loss=[focal]"], r"model.loss: \['focal'\] should be"),
        (["data.target=a", "model.loss={name: cross_entropy}"], "give whole numbers"),
    ],
)
def test_mistakes_are_refused_with_their_place(written: Path, words: list[str], problem: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=problem):
        train(load_experiment(written, words), say=lambda line: None)


def test_a_mistake_in_the_file_is_named_with_its_line(written: Path) -> None:
    text = written.read_text()
    written.write_text(text.replace("gamma: 2.0", "gamma: high"))
    line = 1 + text[: text.index("gamma: 2.0")].count("\n")
    with pytest.raises(ConfigError, match=rf"kinds.yaml:{line}: model.loss.gamma: gamma='high' should be a number"):
        build(load_experiment(written))
    written.write_text(text.replace("name: focal", "name: my_file.py:Own"))
    with pytest.raises(ConfigError, match=r"model.loss.name: 'my_file.py:Own' would run code because a file says so"):
        load_experiment(written)


def test_a_loss_of_ones_own_takes_options_from_the_file(written: Path) -> None:
    (written.parent / "own_losses_test.py").write_text(
        "from trainwright import CrossEntropyLoss\n\n\n"
        "class Scaled(CrossEntropyLoss):\n"
        "    def __init__(self, scale=1.0):\n"
        "        super().__init__()\n"
        "        self.scale = scale\n"
    )
    words = ["model.loss={name: " + str(written.parent / "own_losses_test.py") + ":Scaled, scale: 2.5}"]
    assert build(load_experiment(written, words)).trainer.compute_loss_func.scale == 2.5  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("model.loss=bce", "should have the same: a 0 or 1 for each class"),
        ("model.loss=mse", "this loss is for numbers. For classes take 'cross_entropy'"),
        ("model.loss={name: ordinal, outputs: borders}", "outputs: borders is for a network with one output less"),
    ],
)
def test_check_tries_the_loss(written: Path, word: str, problem: str) -> None:
    done = CliRunner().invoke(app, ["check", str(written), word], env={"COLUMNS": "300"})
    assert done.exit_code != 0
    assert problem in done.output
