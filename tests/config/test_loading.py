"""Experiment files and command lines: what they may say, and what is said about mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainwright.config.errors import ConfigError
from trainwright.config.loading import arguments_of, experiment_from, load_experiment, parse_overrides
from trainwright.config.yaml12 import read_yaml


def load(text: str, *overrides: str, trust: bool = False) -> Any:
    return experiment_from(read_yaml(text, "x.yaml"), overrides, trust=trust)


def test_sections_and_short_forms() -> None:
    loaded = load("model: mlp\ndata: rows.csv\ntrackers: [jsonl, mlflow: {tags: {a: b}}]\ncallbacks: early_stopping")
    experiment = loaded.experiment
    assert (experiment.model.name, experiment.data.train) == ("mlp", "rows.csv")
    assert experiment.trackers == {"jsonl": {}, "mlflow": {"tags": {"a": "b"}}}
    assert experiment.callbacks == {"early_stopping": {}}


def test_an_empty_section_says_nothing() -> None:
    assert load("model: mlp\ntraining:\ntrackers:\ncallbacks:").experiment.training == {}


def test_training_is_training_arguments() -> None:
    text = "model: mlp\ntraining: {learning_rate: 1e-4, eval_strategy: no, fp16: no}\ncheckpoint: {save_total_limit: 3}"
    args = arguments_of(load(text, "parallel.micro_batch=4"), output_dir="x")
    assert args.learning_rate == 1e-4
    assert args.eval_strategy == "no"
    assert args.fp16 is False
    assert (args.save_total_limit, args.micro_batch) == (3, 4)


@pytest.mark.parametrize(
    "words",
    [
        ["training.learning_rate=1e-4"],
        ["--training.learning_rate=1e-4"],
        ["--training.learning_rate", "1e-4"],
    ],
)
def test_overrides_in_every_spelling(words: list[str]) -> None:
    loaded = load("model: mlp\ntraining: {learning_rate: 1.0, seed: 3}", *words)
    assert loaded.experiment.training == {"learning_rate": 1e-4, "seed": 3}
    assert loaded.where(("training", "learning_rate")) == "command line"
    assert loaded.where(("training", "seed")) == "x.yaml:2"


def test_values_of_overrides() -> None:
    words = ["a.b=[1, x]", "--c", "{d: no}", "e=", "f.g=*.csv", "h=C:/data: old", "i=a=b", "--j", "-3"]
    assert parse_overrides(words) == [
        (("a", "b"), [1, "x"]),
        (("c",), {"d": "no"}),
        (("e",), None),
        (("f", "g"), "*.csv"),
        (("h",), "C:/data: old"),
        (("i",), "a=b"),
        (("j",), -3),
    ]


def test_an_override_reaches_into_lists_of_names() -> None:
    loaded = load("model: mlp\ntrackers: [jsonl, wandb]", "trackers.wandb.project=p")
    assert loaded.experiment.trackers == {"jsonl": {}, "wandb": {"project": "p"}}


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("model: mlp\ntrainig: {}", (), "x.yaml:2: trainig: there is no such key (did you mean 'training'?)."),
        (
            "model: mlp\ntraining:\n  learning_rat: 1",
            (),
            "x.yaml:3: training.learning_rat: there is no such argument (did you mean 'learning_rate'?).",
        ),
        (
            "model: mlp\nlearning_rate: 1",
            (),
            "x.yaml:2: learning_rate: there is no such key (it belongs under training:).",
        ),
        ("model: mlp\nmax_length: 1", (), "x.yaml:2: max_length: there is no such key (it belongs under data:)."),
        (
            "model: mlp\ncheckpoint: {learning_rate: 1}",
            (),
            "x.yaml:2: checkpoint.learning_rate: there is no such argument (it belongs under training:).",
        ),
        ("data: x", (), "x.yaml:1: model is missing: say what to train, for example model: mlp."),
        ("model: {}", (), "x.yaml:1: model.name is missing: say what to train, for example model: mlp."),
        (
            "model: mlp\ndata: {limit_train: many}",
            (),
            "x.yaml:2: data.limit_train: 'many' should be a whole number.",
        ),
        ("model: mlp\ntraining: 3", (), "x.yaml:2: training: 3 should be keys with values, such as {key: value}."),
        (
            "model: mlp\ntrackers: {wandb: 3}",
            (),
            "x.yaml:2: trackers.wandb: 3 should be options by name, such as {key: value}.",
        ),
        ("model: mlp\ntrackers: [wandb, wandb]", (), "x.yaml:2: trackers.wandb: it is listed twice."),
        ("- a", (), "x.yaml: an experiment has sections, such as model: and data:."),
        ("model: mlp", ("training",), "command line: 'training': write section.key=value, or --section.key value."),
        ("model: mlp", ("model.name.x=1",), "command line: model.name is 'mlp', which has no keys of its own."),
        (
            "model: mlp\ntrust: true",
            (),
            "x.yaml:2: trust belongs on the command line (--trust): a file cannot vouch for itself.",
        ),
    ],
)
def test_mistakes(text: str, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: mlp\ntraining:\n  learning_rate: fast", "x.yaml:3: learning_rate='fast' must be a number."),
        ("model: mlp\ntraining:\n  fp16: maybe", "x.yaml:3: fp16='maybe' must be true or false."),
        ("model: mlp\ntraining: {seed: 1}\ncheckpoint: {save_steps: -1}", "x.yaml:3: save_steps=-1"),
        (
            "model: mlp\ntraining: {save_steps: 3}\ncheckpoint: {save_steps: 3}",
            "x.yaml:3: checkpoint.save_steps: it is set at x.yaml:2",
        ),
        (
            "model: mlp\ntraining: {predict_with_generate: true}",
            "x.yaml:2: training.predict_with_generate: it acts only with",
        ),
    ],
)
def test_mistakes_in_arguments(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        arguments_of(load(text), output_dir="x")
    assert str(caught.value).startswith(message)


CODE = [
    ("model: {name: mine.py:Net}", "model.name"),
    ("model: {name: mlp, metrics: mine.py:measure}", "model.metrics"),
    ("model: mlp\ndata: mine.py:rows", "data.train"),
    ("model: mlp\ntrackers: [mine.py:Tracker]", "trackers.mine.py:Tracker"),
    ("model: mlp\ncallbacks: {mine.py:Callback: {a: 1}}", "callbacks.mine.py:Callback"),
    ("model: mlp\ntraining: {report_to: [mine.py:Tracker]}", "training.report_to"),
    ("model: {name: x, options: {trust_remote_code: true}}", "model.options.trust_remote_code"),
    ("model: mlp\ndata: {train: x, options: {trust_remote_code: true}}", "data.options.trust_remote_code"),
]


@pytest.mark.parametrize(("text", "place"), CODE)
def test_a_file_alone_never_makes_code_run(text: str, place: str) -> None:
    with pytest.raises(ConfigError, match=r"would run code because a file says so.*--trust") as caught:
        load(text)
    assert f": {place}: " in str(caught.value)
    load(text, trust=True)
    load(text, "trust=true")


def test_what_the_command_line_names_may_run() -> None:
    loaded = load("model: mlp", "model=mine.py:Net", "data.train=mine.py:rows")
    assert loaded.experiment.model.name == "mine.py:Net"
    with pytest.raises(ConfigError, match=r"data\.eval"):
        load("model: mlp\ndata: {eval: mine.py:rows}", "model=mine.py:Net")


def test_json_files_load_too(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"model": "mlp", "training": {"learning_rate": 1e-05}}))
    assert load_experiment(path).experiment.training == {"learning_rate": 1e-05}


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_experiment(tmp_path / "nothing.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not text in UTF-8"):
        load_experiment(tmp_path / "b.yaml")
    (tmp_path / "c.yaml").write_text("# " + "x" * 2_100_000)
    with pytest.raises(ConfigError, match="larger than 2 MB"):
        load_experiment(tmp_path / "c.yaml")
