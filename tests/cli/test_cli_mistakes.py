"""What users get wrong, from outside: exit code 2, where it was written and what to do, never a traceback."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml
from typer.testing import CliRunner

from tests.experiment import tiny
from trainwright.cli.app import app

GOOD = "a,b,kind\n" + "".join(f"{i},{i * i % 11},{'xy'[i % 2]}\n" for i in range(32))
EXPERIMENT = """
model: {name: mlp, options: {width: 4, layers: 1}}
data: {train: t.csv, target: kind, holdout: 0.25}
training: {max_steps: 2, per_device_train_batch_size: 8, use_cpu: true}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "t.csv").write_text(GOOD)
    (tmp_path / "e.yaml").write_text(EXPERIMENT)
    return tmp_path


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def refused(*words: str) -> str:
    done = call(*words)
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    return done.output


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("training.learning_rate=", "command line: training.learning_rate: it is empty"),
        ("nothing.x=1", "command line: nothing: there is no such key"),
        ("trust=maybe", "command line: trust=maybe: write --trust"),
        (
            "callbacks.early_stopping.patienc=2",
            "command line: callbacks.early_stopping: there is no option 'patienc' (did",
        ),
        ("callbacks.monitor.cpu_memory=often", "cpu_memory='often' should be true or false"),
        ("trackers=wandbb", "command line: trackers"),
        ("training.report_to=wandbb", "report_to: there is no tracker 'wandbb' (did you mean 'wandb'?)"),
        ("training.metric_for_best_model=joy", "gives eval_accuracy, eval_f1, eval_loss, and no joy"),
        ("training.optim_args=a=b", "optim_args has ['a']"),
        ("model.metrics=word", "command line: model.metrics: write my_file.py:function"),
        ("model.options={width: -1}", "command line: model.options: mlp:"),
        ("model.options={inputs: 5}", "inputs is what the data gives"),
        ("name=../up", "command line: name: '../up' leads out of runs/"),
        ("training.output_dir=t.csv", "results cannot be written there"),
        ("data.train=", "command line: data.train is missing"),
        ("data.test=none.csv", "command line: data.test: there is no none.csv"),
        ("data.limit_train=0", "data.limit_train: 0 should be a whole number of at least 1"),
        ("data.limit_eval=true", "data.limit_eval: True should be a whole number of at least 1"),
        ("data.holdout=0.99", "data.holdout: 0.99 of 32 rows leaves none to train on"),
        ("data.features=[a, kind]", "'kind' is the target: it cannot predict itself"),
    ],
)
def test_check_finds_what_training_would_stumble_over(place: Path, word: str, message: str) -> None:
    assert message in refused("check", "e.yaml", word)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("", "it has no rows"),
        ("a,b,kind\n", "it has no rows"),
        ("a,b,kind\n1,2\n3,4,5,6\n", "Expected 3 fields in line 3, saw 4"),
        ("a,b,kind\n" + "1,2,x\n2,5,x\n" * 8, "All rows have the same 'kind' (x)"),
        ("a,b,kind\n" + "1,2,x\n1,2,y\n" * 8, "No column is of use"),
        (GOOD.replace(",x\n", ",\n"), "rows have nothing in 'kind'"),
        ("a,kind\n" + "".join(f"{i},{i / 3}\n" for i in range(30)) + "5,\n" * 9, "have no finite number in 'kind'"),
        ("a,kind\n" + "".join(f"{i},{i / 3}\n" for i in range(30)) + "5,inf\n" * 9, "(such as inf)"),
    ],
)
def test_data_that_cannot_be_learned_is_named(place: Path, rows: str, message: str) -> None:
    (place / "t.csv").write_text(rows)
    assert message in refused("check", "e.yaml")


def test_an_empty_key_says_nothing(place: Path) -> None:
    text = EXPERIMENT.replace("holdout: 0.25", "holdout: 0.25, features: , options: , train_split: ")
    (place / "e.yaml").write_text(text)
    assert call("check", "e.yaml").exit_code == 0


def test_no_is_false_where_an_option_is_a_switch(place: Path) -> None:
    assert call("train", "e.yaml", "callbacks.monitor.grad_norm=no", "training.logging_steps=1").exit_code == 0
    logged = (place / "runs/e/metrics.jsonl").read_text()
    assert '"loss"' in logged
    assert "grad_norm" not in logged


def test_keys_without_effect_are_named(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    words = ["data.max_length=5", "data.train_split=other", "data.eval=t.csv", "model.tokenizer=x"]
    assert call("check", "e.yaml", *words).exit_code == 0
    for key in ("data.max_length", "data.train_split", "data.holdout", "model.tokenizer"):
        assert f"{key} does nothing" in caplog.text
    assert "data.eval does" not in caplog.text


def test_check_says_the_command_with_its_permission(place: Path) -> None:
    assert call("check", "e.yaml", "--trust").output.rstrip().endswith("train e.yaml --trust")


@pytest.mark.slow
def test_predict_needs_no_target_and_evaluate_does(place: Path) -> None:
    assert call("train", "e.yaml").exit_code == 0
    (place / "n.csv").write_text("a,b,kind\n1,2,z\n3,4,\n5,6,x\n")
    assert "3 predictions" in call("predict", "runs/e", "--data", "n.csv").output
    assert "'kind' has nothing, z, which" in refused("evaluate", "runs/e", "--data", "n.csv")
    (place / "n.csv").write_text("a,b\n1,2\n")
    assert "1 predictions" in call("predict", "runs/e", "--data", "n.csv").output
    assert "no column 'kind' to compare with" in refused("evaluate", "runs/e", "--data", "n.csv")
    (place / "n.csv").write_text("a,b\nx,2\n")
    assert "'a' holds numbers in the training data" in refused("predict", "runs/e", "--data", "n.csv")
    (place / "n.csv").write_text("a\n1\n")
    assert "lacks the columns b" in refused("predict", "runs/e", "--data", "n.csv")
    assert f"--output {place} cannot be written" in refused("predict", "runs/e", "--output", str(place))
    assert "command line: --data 'n.csv' cannot be read" in refused(
        "predict", "runs/e", "--data", "n.csv", "data.options={q: 1}"
    )
    assert "do not fit the model" in refused("evaluate", "runs/e", "model.options.width=16")


@pytest.mark.parametrize("name", ["1e3", "true", "[x]", "{y}"])
def test_a_run_may_be_called_anything(place: Path, name: str) -> None:
    assert call("train", "e.yaml").exit_code == 0
    (place / "runs/e").rename(place / name)
    done = call("resume", name, "training.max_steps=3")
    assert done.exit_code == 0, done.output
    assert (place / name / "checkpoint-3").is_dir()


def test_a_run_does_not_go_on_with_other_rows(place: Path) -> None:
    assert call("train", "e.yaml").exit_code == 0
    (place / "t.csv").write_text(GOOD + "5,5,x\n" * 8)
    assert "t.csv is not what it was when the run in" in refused("train", "e.yaml", "training.max_steps=4")


@pytest.mark.slow
def test_secrets_are_never_kept_and_asked_for_again(place: Path) -> None:
    secret = "training.hub_token=hf_AbCdEfGhIjKlMnOp"
    assert call("train", "e.yaml", secret).exit_code == 0
    for path in (place / "runs").rglob("*"):
        if path.is_file():
            assert b"AbCdEfGhIjKlMnOp" not in path.read_bytes(), path
    assert yaml.safe_load((place / "runs/e/experiment.yaml").read_text())["training"]["hub_token"] == "***"
    assert "training.hub_token: secrets are not kept with a run" in refused("resume", "runs/e", "training.max_steps=3")
    assert call("evaluate", "runs/e").exit_code == 0
    assert call("resume", "runs/e", "training.max_steps=3", secret).exit_code == 0


@pytest.mark.slow
def test_a_secret_in_a_list_or_in_options_is_asked_for_again(place: Path) -> None:
    secrets = ["training.tags=[hf_AbCdEfGhIjKlMnOp, small]", "trackers.jsonl.file=x.jsonl"]
    assert call("train", "e.yaml", *secrets).exit_code == 0
    assert "AbCdEfGhIjKlMnOp" not in (place / "runs/e/experiment.yaml").read_text()
    assert "training.tags: secrets are not kept with a run" in refused("resume", "runs/e", "training.max_steps=3")
    assert call("resume", "runs/e", "training.max_steps=3", "training.tags=[small]").exit_code == 0


def test_data_behind_a_secret_address_is_asked_for_again(place: Path) -> None:
    assert call("train", "e.yaml").exit_code == 0
    stored = place / "runs/e/experiment.yaml"
    text = stored.read_text().replace("holdout: 0.25", "holdout: 0.25\n  test: https://example.org/x.csv?sig=***")
    stored.write_text(text)
    assert "data.test: secrets are not kept with a run" in refused("evaluate", "runs/e")
    assert call("evaluate", "runs/e", "data.test=t.csv").exit_code == 0


def test_commands_that_are_shown_hold_no_secrets(place: Path) -> None:
    shown = call("check", "e.yaml", "training.hub_token=hf_AbCdEfGhIjKlMnOp").output
    assert "training.hub_token=***" in shown
    assert "AbCdEfGhIjKlMnOp" not in shown


def test_a_batch_script_is_no_place_for_a_secret(place: Path) -> None:
    words = ("launch", "--on", "slurm", "--dry-run", "e.yaml", "training.hub_token=hf_AbCdEfGhIjKlMnOp")
    assert "training.hub_token=*** looks like a secret" in refused(*words)
    assert list(place.glob("*.sbatch")) == []


DEEP, DIGITS = "[" * 100_000, "9" * 5_000


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model.options." + "a." * 30_000 + "a=1", "more than 32 levels inside each other"),
        ("model.options.x=" + DEEP, "unexpected keyword argument 'x'"),
        ("training.seed=" + DIGITS, "must be a finite number"),
        ("training.seed=0x" + "f" * 50_000, "command line: seed is too large a number"),
        ("training." + "x" * 100_000 + "=1", "there is no such argument"),
        ("name=" + "x" * 5_000, "this name is too long for a file"),
        ("data.train=" + "x" * 5_000, "this name is too long for a file"),
        ("name=\udcff", "is not text in UTF-8"),
        ("training={a: &a [*a]}", "should be keys with values"),
    ],
    ids=range(9),
)
def test_words_that_nobody_means_are_named_in_one_line(place: Path, word: str, message: str) -> None:
    output = refused("train", "e.yaml", word)
    assert message in output
    assert len(output) < 1_500


@pytest.mark.timeout(60)
@pytest.mark.parametrize("field", ["deepspeed", "fsdp_config", "accelerator_config"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DEEP, "has too many levels inside each other"),
        ("{x", "is not JSON"),
        ("[1]", "must hold an object"),
        (f'{{"a": {DIGITS}}}', "is not JSON"),
        ("\0", "is not JSON"),
        (" " * 3_000_000, "larger than 2 MB"),
    ],
    ids=range(6),
)
def test_a_json_file_that_is_none_is_named(place: Path, field: str, text: str, message: str) -> None:
    (place / "x.json").write_text(text)
    output = refused("train", "e.yaml", f"training.{field}=x.json")
    assert message in output
    assert "x.json" in output


class _Touch:
    def __reduce__(self) -> Any:
        return (os.system, ("touch pwned",))


@pytest.mark.parametrize(
    "options",
    [
        "{weights_only: false}",
        "{trust_remote_code: true}",
        "{use_kernels: true}",
        "{attn_implementation: someone/kernel}",
        "{config: {trust_remote_code: 'yes'}}",
    ],
)
def test_options_that_run_code_need_permission(place: Path, options: str) -> None:
    tiny.bert(place / "bert")
    (place / "bert/model.safetensors").unlink()
    (place / "bert/pytorch_model.bin").write_bytes(pickle.dumps(_Touch()))
    text = f"model: {{name: bert, task: text-classification, options: {options}}}\ndata: t.csv\n"
    (place / "e.yaml").write_text(text)
    assert "would run code because a file says so" in refused("train", "e.yaml")
    assert not (place / "pwned").exists()


@pytest.mark.slow
def test_text_longer_than_the_model_reads(place: Path) -> None:
    tiny.gpt(place / "gpt")
    (place / "a.txt").write_text("the good film\n\n" * 60)
    (place / "e.yaml").write_text("model: gpt\ndata: a.txt\ntraining: {max_steps: 1, use_cpu: true}\n")
    assert "data.max_length: 100 is more than the 64 tokens" in refused("check", "e.yaml", "data.max_length=100")
    done = call("check", "e.yaml")
    assert done.exit_code == 0, done.output
    assert "blocks of 64 tokens" in done.output


@pytest.mark.slow
def test_labels_of_new_data_are_matched_by_name(place: Path) -> None:
    """A folder numbers its classes anew: 0 is not the class that was 0 in training."""
    from PIL import Image

    def draw(folder: str, **colours: int) -> None:
        for name, colour in colours.items():
            (place / folder / name).mkdir(parents=True)
            for index in range(4):
                Image.new("L", (8, 8), colour).save(place / folder / name / f"{index}.png")

    draw("train", cat=20, dog=230)
    draw("new", bird=20, cat=230)
    draw("same", cat=20, dog=230)
    (place / "e.yaml").write_text(
        "model: {name: cnn, options: {width: 4}}\ndata: {train: train, image_size: 8}\n"
        "training: {max_steps: 1, use_cpu: true}\n"
    )
    assert call("train", "e.yaml").exit_code == 0
    assert "The label 'bird' is none of those trained with: cat, dog" in refused("evaluate", "runs/e", "--data", "new")
    assert "8 predictions" in call("predict", "runs/e", "--data", "new").output
    assert "eval_accuracy" in json.loads(call("evaluate", "runs/e", "--data", "same", "--json").output)


def test_cp_writes_all_or_nothing(place: Path) -> None:
    (place / "table.csv").write_text("mine")
    assert "table.csv is there already" in refused("cp", "table", ".")
    assert not (place / "table.yaml").exists()
    assert (place / "table.csv").read_text() == "mine"
    assert "cannot be written" in refused("cp", "table", str(place / "t.csv" / "sub"))


@pytest.mark.full
def test_launch_goes_on_with_a_folder_and_says_so(place: Path) -> None:
    command = [sys.executable, "-m", "trainwright", "launch", "-N", "2", "--cpu"]

    def launch(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        return subprocess.run(
            [*command, *words], cwd=place, env=environment, capture_output=True, text=True, check=False
        )

    stopped = launch("e.yaml", "training.max_hours=1e-9")
    assert stopped.returncode == 75, stopped.stderr
    assert "launch -N 2 --cpu e.yaml training.max_hours=1e-9" in stopped.stderr
    assert launch("runs/e", "training.max_hours=1").returncode == 0
    assert (place / "runs/e/model.safetensors").is_file()


def test_a_run_whose_files_were_changed_by_hand(place: Path) -> None:
    assert call("train", "e.yaml").exit_code == 0
    (place / "runs/e/preprocessing.json").write_text("[]")
    assert "preprocessing.json cannot be read" in refused("train", "e.yaml")
    (place / "runs/e/experiment.yaml").write_text("- a")
    assert "experiment.yaml is no experiment" in refused("train", "e.yaml")
    assert "experiment.yaml is no experiment" in refused("evaluate", "runs/e")
    assert "results cannot be written there" in refused("train", "e.yaml", "training.output_dir=t.csv")
