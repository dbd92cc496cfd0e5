"""The first minutes: what trainwright alone says, init, copies, the order of commands, completion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from trainwright.cli import starting
from trainwright.cli.app import app

TABLE = "a,b,kind\n" + "".join(f"{i},{i * i % 11},{'xy'[i % 2]}\n" for i in range(32))
REVIEWS = "review,stars\n" + "".join(f"This film was number {i} of all that I have seen,{i % 5}\n" for i in range(20))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text(TABLE)
    return tmp_path


def call(*words: str, answers: str | None = None) -> Any:
    return CliRunner().invoke(app, list(words), input=answers)


def test_alone_it_says_what_to_do_next(place: Path) -> None:
    done = call()
    assert done.exit_code == 0
    assert "Nothing is here yet" in done.output
    for word in ("init", "demo", "ls", "--help"):
        assert word in done.output
    assert call("init", "--data", "table.csv").exit_code == 0
    assert "train experiment.yaml" in call().output
    (place / "runs/first").mkdir(parents=True)
    (place / "runs/first/experiment.yaml").write_text("model: mlp\ndata: table.csv\n")
    assert "show runs/first" in call().output


@pytest.mark.parametrize("words", [("--data", "table.csv"), ("--data", "digits"), ("--data", "characters")])
def test_what_init_writes_passes_check(place: Path, words: tuple[str, ...]) -> None:
    done = call("init", *words, "--output", "mine.yaml")
    assert done.exit_code == 0, done.output
    assert (place / "experiment.schema.json").is_file()
    found = call("check", "mine.yaml", "training.use_cpu=true", "model.options={width: 8}")
    assert found.exit_code == 0, found.output


def test_init_guesses_from_the_data(place: Path) -> None:
    (place / "reviews.csv").write_text(REVIEWS)
    assert call("init", "--data", "reviews.csv").exit_code == 0
    found = yaml.safe_load((place / "experiment.yaml").read_text())
    assert found["model"] == {"name": "distilbert-base-uncased", "task": "text-classification"}
    assert found["data"] == {"train": "reviews.csv", "text": "review", "target": "stars", "holdout": 0.2}


def test_conversations_are_for_a_chat_model(place: Path) -> None:
    """A tiny model, conversations and all, are those that come with the package."""
    assert call("cp", "chat").exit_code == 0
    assert call("init", "--data", "chats.jsonl", "--model", "./tiny-chat").exit_code == 0
    assert yaml.safe_load((place / "experiment.yaml").read_text())["model"]["task"] == "chat"
    found = call("check", "experiment.yaml", "training.use_cpu=true", "model.pretrained=false")
    assert found.exit_code == 0, found.output


def test_init_asks_three_questions(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "_is_at_a_terminal", lambda: True)
    done = call("init", answers="table.csv\n\n\n")
    assert done.exit_code == 0, done.output
    assert done.output.count("?") == 3
    assert "[table]" in done.output
    assert "[mlp]" in done.output
    found = yaml.safe_load((place / "experiment.yaml").read_text())
    assert found["data"]["target"] == "kind"


def test_init_refuses_in_a_line_and_overwrites_nothing(place: Path) -> None:
    assert "init asks questions at a terminal" in call("init").output
    assert "did you mean 'table.csv'?" in call("init", "--data", "tabel.csv").output
    assert "did you mean 'images'?" in call("init", "--data", "digits", "--task", "image").output
    assert "did you mean 'kind'?" in call("init", "--data", "table.csv", "--target", "knid").output
    (place / "experiment.yaml").write_text("mine")
    done = call("init", "--data", "digits")
    assert done.exit_code == 2
    assert "is not overwritten" in done.output
    assert (place / "experiment.yaml").read_text() == "mine"


def test_a_copy_without_a_folder_is_made_here(place: Path) -> None:
    (place / "table.csv").unlink()
    assert call("cp", "table").exit_code == 0
    assert (place / "table.yaml").is_file()
    assert (place / "table.csv").is_file()


def test_commands_are_in_the_order_of_use() -> None:
    shown = call("--help").output
    places = [shown.index(f" {name} ") for name in ("train", "init", "check", "resume", "evaluate", "runs", "env")]
    assert places == sorted(places)


def test_every_command_has_a_place() -> None:
    from typer.main import get_command

    from trainwright.cli.guiding import _PLACES

    command: Any = get_command(app)
    assert set(command.commands) == set(_PLACES)


def test_shells_complete_commands() -> None:
    assert "--install-completion" in call("--help").output
    done = CliRunner().invoke(
        app,
        [],
        prog_name="trainwright",
        env={"_TRAINWRIGHT_COMPLETE": "complete_bash", "COMP_WORDS": "trainwright tr", "COMP_CWORD": "1"},
    )
    assert set(done.output.split()) == {"train", "try"}
