"""YAML and the command line: types from the file, nothing run, nothing silently lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainwright.compat.pymarlin import CustomArgParser, DefaultCheckpointerArguments, TrainerArguments

TEXT = """
trainer: {backend: sp, epochs: 3, train_batch_size: 32, max_train_steps_per_epoch: null, clip_grads: true}
optimizer: {lr: 1e-4, betas: [0.9, 0.999], layers: [1, 2], names: [a, b], deep: {deeper: 5}}
title: 1e-4 of everything
ckpt: {checkpoint: false, file_prefix: run}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(TEXT)
    return path


def parse(config: Path, *words: str) -> dict[str, Any]:
    return CustomArgParser().parse(["--config_path", str(config), *words])


def test_the_file_as_it_is(config: Path) -> None:
    found = parse(config)
    assert found["optimizer"]["lr"] == 1e-4
    assert found["title"] == "1e-4 of everything"
    assert found["config_path"] == str(config)
    arguments = TrainerArguments(**found["trainer"], checkpointer_args=DefaultCheckpointerArguments(**found["ckpt"]))
    assert (arguments.epochs, arguments.checkpointer_args.file_prefix) == (3, "run")


@pytest.mark.parametrize(
    ("words", "section", "key", "value"),
    [
        ("--trainer.epochs 5", "trainer", "epochs", 5),
        ("--trainer.epochs=5", "trainer", "epochs", 5),
        ("--trainer.clip_grads false", "trainer", "clip_grads", False),
        ("--trainer.clip_grads", "trainer", "clip_grads", True),
        ("--trainer.max_train_steps_per_epoch 7", "trainer", "max_train_steps_per_epoch", 7),
        ("--trainer.train_batch_size null", "trainer", "train_batch_size", None),
        ("--optimizer.lr 3e-5", "optimizer", "lr", 3e-5),
        ("--optimizer.lr -1", "optimizer", "lr", -1.0),
        ("--optimizer.betas [0.5,0.9]", "optimizer", "betas", [0.5, 0.9]),
        ("--optimizer.betas 0.5,0.9", "optimizer", "betas", [0.5, 0.9]),
        ("--optimizer.layers 1-2-3", "optimizer", "layers", [1, 2, 3]),
        ("--optimizer.layers 4", "optimizer", "layers", [4]),
        ("--optimizer.names x-y", "optimizer", "names", ["x", "y"]),
        ("--optimizer.deep.deeper 6", "optimizer", "deep", {"deeper": 6}),
        ("--ckpt.file_prefix 12", "ckpt", "file_prefix", "12"),
    ],
)
def test_changes_take_the_files_types(config: Path, words: str, section: str, key: str, value: Any) -> None:
    found = parse(config, *words.split())[section][key]
    assert found == value
    assert type(found) is type(value)


def test_top_level_keys_and_params_last(config: Path) -> None:
    params = json.dumps({"--trainer.epochs": 9, "--title": "new", "--trainer.clip_grads": "false"})
    found = parse(config, "--trainer.epochs", "5", "--params", params)
    assert (found["trainer"]["epochs"], found["title"], found["trainer"]["clip_grads"]) == (9, "new", False)


def test_unknown_names_are_warned_of_and_ignored(config: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "trainwright"):
        found = parse(config, "--trainer.epoch", "5", "--nothing.at.all", "1", "--params", '{"--x": 1}', "stray")
    assert found["trainer"]["epochs"] == 3
    for word in ("--trainer.epoch ", "--nothing.at.all", "--x", "'stray'"):
        assert word in caplog.text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trainer.clip_grads", "maybe"], "--trainer.clip_grads: 'maybe' is neither true nor false"),
        (["--trainer.epochs", "many"], r"--trainer.epochs: 'many' is not an int"),
        (["--trainer.epochs"], "needs a value"),
        (["--trainer", "5"], "this is a section"),
        (["--params", "{epochs: 1"], "--params must be a JSON object"),
        (["--params", "[1]"], "--params must be a JSON object"),
        (["--optimizer.layers", "__import__('os').getcwd()"], "is not an int"),
    ],
)
def test_what_cannot_be_read_says_which(config: Path, words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(config, *words)


def test_a_folder_with_one_file(config: Path) -> None:
    assert parse(config.parent)["trainer"]["epochs"] == 3
    (config.parent / "other.yml").write_text("a: 1")
    with pytest.raises(ValueError, match=r"it has config\.yaml, other\.yml"):
        parse(config.parent)


def test_files_that_are_not_there_or_broken(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="pass its path with --config_path"):
        parse(tmp_path / "nowhere.yaml")
    with pytest.raises(ValueError, match="it has none"):
        parse(tmp_path)
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1")
    with pytest.raises(ValueError, match=r"broken\.yaml is not valid YAML"):
        parse(broken)
    broken.write_text("just words")
    with pytest.raises(ValueError, match="sections and keys"):
        parse(broken)


def test_a_key_of_ones_own_for_the_path(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = CustomArgParser(yaml_file_arg_key="settings", default_yamlfile=str(config))
    monkeypatch.setattr("sys.argv", ["train.py", "--trainer.epochs", "2"])
    assert parser.parse()["trainer"]["epochs"] == 2
