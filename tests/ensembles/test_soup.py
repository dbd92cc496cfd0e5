"""One model from a run's checkpoints: averaged, chosen, or together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor, nn
from typer.testing import CliRunner

from trainwright.cli import app
from trainwright.config.errors import ConfigError
from trainwright.config.loading import load_experiment
from trainwright.engines.torch.ensembles.averaging import take_statistics
from trainwright.experiment.exporting import load_trained
from trainwright.experiment.running import evaluate, predict, train
from trainwright.experiment.souping import soup

ROOT = Path(__file__).parents[2]


def trained(folder: Path, *words: str, **model: Any) -> Path:
    """Train digits for three checkpoints; returns the run's folder."""
    described = {
        "model": {"name": "mlp", "options": {"width": 24}, **model},
        "data": {"train": "digits", "limit_train": 320, "limit_eval": 120},
        "training": {"output_dir": str(folder / "run"), "num_train_epochs": 3, "report_to": "none"},
        "checkpoint": {"checkpoint_every": "1 epoch", "save_total_limit": 8},
    }
    (folder / "digits.yaml").write_text(yaml.safe_dump(described))
    return train(load_experiment(folder / "digits.yaml", words), say=lambda line: None).folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("digits"))


def stored(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def test_a_uniform_soup_is_the_average_and_loads_as_one_model(run: Path, tmp_path: Path) -> None:
    done = soup(run, output=tmp_path / "soup")
    assert done.ingredients == ["checkpoint-10", "checkpoint-20", "checkpoint-30"]
    each = [stored(run / name) for name in done.ingredients]
    for name, weight in stored(done.folder).items():
        torch.testing.assert_close(weight, torch.stack([one[name] for one in each]).mean(0))
    assert evaluate(done.folder)["eval_loss"] == done.metrics["eval_loss"]
    assert predict(done.folder)[1] == 120
    model = load_trained(done.folder).model
    assert all(torch.equal(one, stored(done.folder)[name]) for name, one in model.state_dict().items())
    assert json.loads((done.folder / "soup.json").read_text())["checkpoints"] == done.ingredients


def test_a_greedy_soup_is_no_worse_than_its_best_checkpoint(run: Path, tmp_path: Path) -> None:
    done = soup(run, how="greedy", metric="loss", output=tmp_path / "soup")
    assert done.alone.keys() == {"checkpoint-10", "checkpoint-20", "checkpoint-30"}
    assert done.metrics["eval_loss"] <= min(done.alone.values())
    # Of so short a training the first is far behind.
    assert "checkpoint-10" not in done.ingredients
    by_accuracy = soup(run, how="greedy", output=tmp_path / "other")
    assert by_accuracy.metrics["eval_accuracy"] >= max(by_accuracy.alone.values())


def test_snapshots_are_an_ensemble(run: Path, tmp_path: Path) -> None:
    done = soup(run, how="snapshots", checkpoints=["checkpoint-30", "checkpoint-20"], output=tmp_path / "both")
    assert done.ingredients == ["checkpoint-20", "checkpoint-30"]
    weights = stored(done.folder)
    for place, name in enumerate(done.ingredients):
        for key, tensor in stored(run / name).items():
            assert torch.equal(weights[f"members.{place}.{key}"], tensor)
    assert 0 < done.metrics["eval_disagreement"] < 2
    line = json.loads(predict(done.folder)[0].read_text().splitlines()[0])
    assert line["entropy"] > 0


def test_an_ensemble_of_averages(tmp_path: Path) -> None:
    folder = trained(tmp_path, "training.num_train_epochs=2", ensemble={"members": 2})
    done = soup(folder)
    assert done.folder == tmp_path / "run-uniform"
    assert {name.split(".")[1] for name in stored(done.folder) if name.startswith("members")} == {"0", "1"}
    with pytest.raises(ConfigError, match="is an ensemble already"):
        soup(folder, how="snapshots")


def test_statistics_are_of_the_average(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    x = torch.randn(64, 3)
    take_statistics(model, [(x[:32], None), (x[32:], None)])
    hidden = model[0](x)
    norm: Any = model[1]
    torch.testing.assert_close(norm.running_mean, hidden.mean(0))
    assert norm.momentum == 0.1
    assert model.training
    folder = trained(tmp_path, "training.num_train_epochs=2", name="cnn", options={"width": 4})
    done = soup(folder)
    averaged = (stored(folder / "checkpoint-10"), stored(folder / "checkpoint-20"))
    name = next(name for name in averaged[0] if name.endswith("running_var"))
    assert not torch.allclose(stored(done.folder)[name], (averaged[0][name] + averaged[1][name]) / 2)
    again = soup(folder, output=tmp_path / "again")
    assert all(torch.equal(one, stored(again.folder)[key]) for key, one in stored(done.folder).items())


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = trained(tmp_path, "training.num_train_epochs=2")
    file = folder / "checkpoint-10" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"checkpoint-10 is damaged: model.safetensors.*Name those to use"):
        soup(folder)
    assert not (tmp_path / "run-uniform").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"how": "thick"}, "how='thick' should be one of uniform, greedy, snapshots"),
        ({"metric": "loss"}, "leave it out"),
        ({"checkpoints": ["checkpoint-7"]}, r"has no checkpoint-7; there are checkpoint-10"),
        ({"checkpoints": ["checkpoint-10"]}, r"has 1 checkpoint\(s\) to use.*save_total_limit=8"),
        ({"how": "greedy", "metric": "taste"}, r"There is no metric 'taste' to choose by: .* gives accuracy"),
    ],
)
def test_what_cannot_be_made_is_refused(run: Path, tmp_path: Path, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        soup(run, output=tmp_path / "soup", **options)
    assert not (tmp_path / "soup").exists()


def test_the_command_says_what_it_made_and_overwrites_nothing(run: Path, tmp_path: Path) -> None:
    words = ["soup", str(run), "--how", "greedy", "--output", str(tmp_path / "soup")]
    done = CliRunner().invoke(app.app, words)
    assert done.exit_code == 0, done.output
    assert "eval_accuracy" in done.output
    again = CliRunner().invoke(app.app, words)
    assert again.exit_code == 2
    assert "is there already: choose another --output" in again.output


KILLED = """
import os, signal, sys
from trainwright.experiment import souping

def dies(draft, target):
    os.kill(os.getpid(), signal.SIGKILL)

souping.publish = dies
souping.soup(sys.argv[1], output=sys.argv[2])
"""


@pytest.mark.slow
def test_a_kill_leaves_nothing_and_the_same_again_makes_the_same(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "soup"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(run), str(target)], env=environment, capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not target.exists()
    soup(run, output=target)
    soup(run, output=tmp_path / "undisturbed")
    assert all(torch.equal(one, stored(tmp_path / "undisturbed")[name]) for name, one in stored(target).items())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["soup", "undisturbed"]
