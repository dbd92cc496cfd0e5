"""README's commands after a plain ``pip install``; what needs more says in one line what to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from trainwright.experiment.library import descriptions, needs

ROOT = Path(__file__).parents[2]
HUGGING_FACE = "pip install 'trainwright[hf]'"
SCRIPT = Path(__file__).with_name("plain_install.py")


def run(folder: Path, *commands: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps([command.split() for command in commands])],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_first_commands_work_without_any_other_package(tmp_path: Path) -> None:
    (tmp_path / "novel.txt").write_text("It was a dark and stormy night. " * 200)
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"a": {i}, "b": {i % 3}, "y": {i * 2.5}}}\n' for i in range(60)))
    (tmp_path / "rows.tsv").write_text("a\tkind\n" + "".join(f"{i}\t{'xy'[i % 2]}\n" for i in range(60)))
    table = "model: mlp\ndata: {train: %s, target: %s, holdout: 0.2}\ntraining: {num_train_epochs: 1, use_cpu: true}\n"
    (tmp_path / "jsonl.yaml").write_text(table % ("rows.jsonl", "y"))
    (tmp_path / "tsv.yaml").write_text(table % ("rows.tsv", "kind"))
    answers = run(
        tmp_path,
        "ls",
        "cp digits .",
        "check digits.yaml",
        "train digits.yaml training.learning_rate=1e-3 training.num_train_epochs=1",
        "evaluate runs/digits",
        "verify runs/digits",
        "cp table .",
        "check table.yaml",
        "train table.yaml training.num_train_epochs=2",
        "evaluate runs/table",
        "predict runs/table --data table.csv",
        "cp characters .",
        "check characters.yaml data.train=novel.txt",
        "cp own-module .",
        "check own-module.yaml --trust",
        "train jsonl.yaml",
        "train tsv.yaml",
        "demo --epochs 1",
        "export runs/digits --to safetensors",
        "export runs/digits --to onnx",
    )
    lacks = answers.pop()
    assert (lacks["code"], "pip install 'trainwright[recipes]'" in lacks["output"]) == (2, True)
    for answer in answers:
        assert answer["code"] == 0, answer
    assert "eval_accuracy" in answers[4]["output"]
    assert len((tmp_path / "runs/table/predictions.jsonl").read_text().splitlines()) > 0


@pytest.mark.slow
def test_a_missing_package_is_one_line_with_the_command_that_installs_it(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    (tmp_path / "rows.csv").write_text("text,label\n" + "good,1\nbad,0\n" * 8)
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "parquet.yaml").write_text("model: mlp\ndata: {train: rows.parquet, target: y}\n")
    (tmp_path / "optimizer.yaml").write_text("model: mlp\ndata: digits\ntraining: {optim: schedule_free_adamw}\n")
    (tmp_path / "tracked.yaml").write_text("model: mlp\ndata: digits\ntrackers: [wandb]\n")
    texts = "data.train=rows.csv data.text=text data.target=label data.holdout=0.5 data.eval_split=null"
    cases = {
        **{f"check {name}.yaml {texts}": HUGGING_FACE for name in ("summaries", "text-classification")},
        "check language-model.yaml data.train=rows.csv": HUGGING_FACE,
        "check image-folder.yaml": HUGGING_FACE,
        "check image-folder.yaml model.name=cnn": HUGGING_FACE,
        "check parquet.yaml": HUGGING_FACE,
        "check optimizer.yaml": "pip install schedulefree",
        "check tracked.yaml": "pip install 'trainwright[wandb]'",
    }
    hand_over = [f"cp {name} ." for name in descriptions() if needs(name)]
    for answer in run(tmp_path, *hand_over, *cases)[len(hand_over) :]:
        lines = answer["output"].strip().splitlines()
        assert (answer["code"], answer["failure"]) == (2, ""), answer
        assert cases[" ".join(answer["words"])] in lines[-1], answer
        assert "Traceback" not in answer["output"]


@pytest.mark.slow
def test_the_list_says_what_each_experiment_needs(tmp_path: Path) -> None:
    (listed,) = run(tmp_path, "ls")
    lines = listed["output"].splitlines()
    for name in descriptions():
        at = next(n for n, line in enumerate(lines) if line.split()[:1] == [name])
        if packages := needs(name):
            assert f"needs {', '.join(packages)} (not installed: pip install 'trainwright[hf]'" in lines[at + 1]
        else:
            assert "needs" not in lines[at + 1]


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_wheel_in_an_environment_of_its_own(tmp_path: Path) -> None:
    """As a stranger has it: nothing is there but what the wheel asks for."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")

    def call(*words: str) -> str:
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False)
        assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    install = [python, "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
    call(*install, "torch")
    call(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), str(ROOT))
    call(*install, str(next(tmp_path.glob("*.whl"))))
    command = str(tmp_path / "venv" / "bin" / "trainwright")
    for words in ("cp digits .", "check digits.yaml", "train digits.yaml training.learning_rate=1e-3", "cp table ."):
        call(command, *words.split())
    assert "eval_accuracy" in call(command, "evaluate", "runs/digits")
    call(command, "train", "table.yaml")
