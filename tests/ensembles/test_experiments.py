"""An ensemble in an experiment's file: trained, killed, resumed, evaluated, asked and exported like one model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from trainwright import calibrate
from trainwright.config.errors import ConfigError
from trainwright.config.loading import load_experiment
from trainwright.engines.torch.ensembles.combining import calibration_error
from trainwright.engines.torch.ensembles.ensemble import Ensemble
from trainwright.experiment.building import build
from trainwright.experiment.exporting import export
from trainwright.experiment.running import evaluate, predict, train

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def written(folder: Path, **ensemble: Any) -> Path:
    """Write an experiment with digits, and return its file."""
    described = {
        "name": "digits",
        "model": {"name": "mlp", "options": {"width": 24}, "ensemble": {"members": 3, **ensemble}},
        "data": {"train": "digits", "limit_train": 320, "limit_eval": 200},
        "training": {
            "output_dir": str(folder / "run"),
            "num_train_epochs": 2,
            "checkpoint_every": "5 steps",
            "save_total_limit": 3,
            "report_to": "none",
        },
    }
    file = folder / "digits.yaml"
    file.write_text(yaml.safe_dump(described, sort_keys=False))
    return file


def quiet(line: str) -> None:
    """Say nothing."""


def test_it_is_trained_evaluated_asked_exported_and_loaded_as_one_model(tmp_path: Path) -> None:
    file = written(tmp_path, bags=True, calibrate=True, predict="stacked")
    folder = train(load_experiment(file, ["model.ensemble.members=4"]), say=quiet).folder
    weights = load_file(folder / "model.safetensors")
    assert {name.split(".")[1] for name in weights if name.startswith("members.")} == set("0123")
    said = json.loads((folder / "calibration.json").read_text())
    assert float(weights["temperature"]) == pytest.approx(said["temperature"]) != 1
    assert said["loss_after"] < said["loss_before"]
    found = evaluate(folder)
    assert found["eval_loss"] < 2.3
    voted = evaluate(folder, overrides=["model.ensemble.predict=vote"])
    assert voted["eval_loss"] != found["eval_loss"]
    path, count = predict(folder)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == count == 200
    right = np.mean([line["prediction"] == line["label"] for line in lines])
    assert right == pytest.approx(found["eval_accuracy"])
    assert all(0 <= line["disagreement"] <= line["entropy"] * 3 + 1 for line in lines)
    done = export(folder, "safetensors", tmp_path / "exported")
    assert {n: t.shape for n, t in load_file(done.model).items()} == {n: t.shape for n, t in weights.items()}


def test_the_graph_of_an_export_predicts_the_same(tmp_path: Path) -> None:
    import onnxruntime

    file = written(tmp_path)
    folder = train(load_experiment(file, ["training.num_train_epochs=1"]), say=quiet).folder
    done = export(folder, "onnx", tmp_path / "graph")
    built = build(load_experiment(file))
    built.trainer._load_from_checkpoint(str(folder))
    pixels = torch.stack([built.prepared.eval[number]["pixel_values"] for number in range(5)])
    expected = built.prepared.model.eval()(pixel_values=pixels)
    found = onnxruntime.InferenceSession(str(done.model)).run(None, {"pixel_values": pixels.numpy()})
    for one, other in zip(found, expected.values(), strict=True):
        np.testing.assert_allclose(np.asarray(one), other.detach().numpy(), atol=1e-4)


def test_a_member_begins_as_a_run_of_its_own_seed_does(tmp_path: Path) -> None:
    file = written(tmp_path)
    ensemble: Any = build(load_experiment(file, ["training.seed=5"])).prepared.model
    single = build(load_experiment(file, ["model.ensemble=null", "training.seed=7"])).prepared.model
    assert all(torch.equal(one, single.state_dict()[name]) for name, one in ensemble.members[2].state_dict().items())


def test_members_of_several_configurations(tmp_path: Path) -> None:
    file = written(tmp_path, members=None, configurations=[{"width": 8}, {"width": 16, "layers": 1}])
    ensemble: Any = build(load_experiment(file)).prepared.model
    assert [member.layers[0].out_features for member in ensemble.members] == [8, 16]
    folder = train(load_experiment(file, ["training.num_train_epochs=1"]), say=quiet).folder
    assert evaluate(folder)["eval_accuracy"] > 0.1


def test_amounts_come_with_their_spread(tmp_path: Path) -> None:
    lines = [f"{a / 10},{b},{3 * a + b}" for a in range(40) for b in range(3)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,price", *lines]) + "\n")
    file = written(tmp_path, predict="stacked", bags=True)
    words = [f"data={{train: {tmp_path / 'rows.csv'}, target: price, holdout: 0.3}}", "model.loss=huber"]
    with pytest.raises(ConfigError, match=r"model.ensemble: Bags weigh the loss of each sample"):
        train(load_experiment(file, words), say=quiet)
    folder = train(load_experiment(file, [*words, "model.ensemble.bags=false"]), say=quiet).folder
    path, _ = predict(folder)
    row = json.loads(path.read_text().splitlines()[0])
    assert row["spread"] > 0.001
    assert abs(row["prediction"]) < 1000


def test_an_ensemble_is_better_and_better_calibrated_than_its_members(tmp_path: Path) -> None:
    words = ["training.num_train_epochs=12", "data.limit_eval=350", "model.ensemble.members=5"]
    words += ["model.options.width=64", "model.ensemble.calibrate=true"]
    loaded = load_experiment(written(tmp_path), words)
    built = build(loaded)
    built.trainer.train()
    model, held_out = built.prepared.model, built.prepared.eval
    assert isinstance(model, Ensemble)
    with model.apart():
        built.trainer.compute_metrics = None
        output = built.trainer.predict(held_out)
    labels, members = torch.as_tensor(output.label_ids), torch.as_tensor(output.predictions).movedim(1, 0)
    whole = torch.as_tensor(built.trainer.predict(held_out).predictions[0])

    def accuracy(logits: torch.Tensor) -> float:
        return float((logits.argmax(-1) == labels).double().mean())

    def loss(logits: torch.Tensor) -> float:
        return float(torch.nn.functional.cross_entropy(logits, labels))

    assert accuracy(whole) > np.mean([accuracy(one) for one in members])
    assert loss(whole) < np.mean([loss(one) for one in members])
    found = calibrate(built.trainer)
    assert found.ece_after is not None
    assert found.ece_before is not None
    assert found.ece_after < found.ece_before
    assert found.ece_after < np.mean([calibration_error(one, labels) for one in members])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["model.ensemble.member=3"], r"model.ensemble.member: there is no such key \(did you mean 'members'"),
        (["model.ensemble.members=1"], r"model.ensemble.members: 1 should be a whole number of at least 2"),
        (["model.ensemble.members=many"], r"model.ensemble.members: 'many' should be a whole number"),
        (["model.ensemble.predict=best"], r"model.ensemble: predict='best' should be one of average, vote, stacked"),
        (["model.ensemble.configurations=[{width: 8}]"], r"model.ensemble.members: configurations lists 1"),
        (["model.ensemble.configurations=[{wide: 8}, {}, {}]"], r"model.options: mlp"),
        (["data.eval=null", "data.limit_eval=null", "model.ensemble.kind=both"], "kind='both' should be one of"),
        (["training.label_smoothing_factor=0.1"], r"pass Ensemble\(loss=...\) instead"),
    ],
)
def test_mistakes_are_refused_with_their_place(tmp_path: Path, words: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        train(load_experiment(written(tmp_path), words), say=quiet)


def test_what_is_fitted_at_the_end_needs_held_out_data(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,label\n" + "".join(f"{n},{'yn'[n % 2]}\n" for n in range(20)))
    words = [f"data={{train: {tmp_path / 'rows.csv'}}}", "model.ensemble.calibrate=true"]
    with pytest.raises(ConfigError, match=r"model.ensemble.calibrate: it is fitted to held-out data"):
        build(load_experiment(written(tmp_path), words))


def test_options_of_members_run_no_code_unasked(tmp_path: Path) -> None:
    file = written(tmp_path, members=None, configurations=[{}, {"trust_remote_code": True}])
    with pytest.raises(ConfigError, match="would run code because a file says so"):
        load_experiment(file)


SLOW = """
import time
from trainwright import TrainerCallback

class Slow(TrainerCallback):
    def __init__(self, waits: bool = True):
        self.waits = waits

    def on_step_begin(self, args, state, control, **kwargs):
        if self.waits and state.global_step > {step}:
            time.sleep(60)
"""


@pytest.mark.slow
def test_a_kill_and_the_same_command_end_with_the_same_bits(tmp_path: Path) -> None:
    file = written(tmp_path, bags=True, calibrate=True)
    (tmp_path / "slow.py").write_text(SLOW.format(step=11))
    command = [sys.executable, "-m", "trainwright", "train", str(file)]
    slow = f"callbacks={{{tmp_path / 'slow.py'}:Slow: {{waits: WAITS}}}}"
    folder, whole = tmp_path / "run", tmp_path / "whole"
    options: dict[str, Any] = {"env": ENVIRONMENT, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    killed = subprocess.Popen([*command, slow.replace("WAITS", "true")], **options)
    subprocess.run([*command, f"training.output_dir={whole}"], check=True, timeout=120, **options)
    until = time.monotonic() + 90
    while not (folder / "checkpoint-10" / "manifest.json").exists():
        assert killed.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    subprocess.run([*command, slow.replace("WAITS", "false")], check=True, timeout=120, **options)
    one, other = load_file(whole / "model.safetensors"), load_file(folder / "model.safetensors")
    assert one.keys() == other.keys()
    assert all(one[name].equal(other[name]) for name in one)
    # Killed between the last step and the calibrated model, it is fitted again.
    (folder / "model.safetensors").unlink()
    end = json.loads((folder / "finished.json").read_text())
    (folder / "finished.json").write_text(json.dumps({**end, "has_model": False}))
    train(load_experiment(file, [slow.replace("WAITS", "false")]), say=quiet)
    again = load_file(folder / "model.safetensors")
    assert all(one[name].equal(again[name]) for name in one)


@pytest.mark.full
def test_two_processes_train_what_one_does(tmp_path: Path) -> None:
    file = written(tmp_path, bags=True, calibrate=True)
    found = {}
    for processes in (1, 2):
        folder = tmp_path / f"of-{processes}"
        words = [
            f"training.output_dir={folder}",
            f"training.per_device_train_batch_size={32 // processes}",
            "model.options.dropout=0.0",
        ]
        start = ["train", str(file)] if processes == 1 else ["launch", "--nproc", "2", str(file)]
        done = subprocess.run(
            [sys.executable, "-m", "trainwright", *start, *words],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        found[processes] = load_file(folder / "model.safetensors")
    for name, weight in found[1].items():
        torch.testing.assert_close(found[2][name], weight, atol=1e-4, rtol=1e-3)
