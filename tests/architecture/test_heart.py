"""A run lives in one place, the Trainer is only its face: what keeps it so."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.promises import HOME
from trainwright import Trainer
from trainwright.core import run as outcomes
from trainwright.core.callback import EVENTS

PACKAGE = Path(__file__).parents[2] / "trainwright"
BELOW_THE_FACE = (
    "training",
    "loop",
    "core",
    "randomness",
    "config",
    "engines",
    "data",
    "checkpoint",
    "callbacks",
    "trackers",
    "recipes",
)
#: Methods with an underscore that transformers has too, and that subclasses override.
HOOKS = {line.split("(")[0].removeprefix("Trainer.") for line in (HOME / "hooks.txt").read_text().splitlines()}


def trees(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders:
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            yield str(path.relative_to(PACKAGE)), ast.parse(path.read_text())


def test_the_trainer_is_three_classes_deep() -> None:
    assert len([kind for kind in Trainer.__mro__ if kind is not object]) <= 3


def test_nothing_below_the_face_takes_a_trainer() -> None:
    found = [
        f"{path}:{node.lineno}"
        for path, tree in trees(*BELOW_THE_FACE)
        for node in ast.walk(tree)
        if isinstance(node, ast.arg) and node.arg == "trainer"
    ]
    assert found == []


def test_nobody_but_the_face_reaches_its_records() -> None:
    others = [path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name not in ("trainer", "__pycache__")]
    found = [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for path, tree in trees(*others)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("_setup", "_present_run")
    ]
    assert found == []


@pytest.mark.parametrize(
    ("path", "name"), [("compat/accmt/loop.py", "Loop"), ("compat/sparseml/trainer.py", "Trainer")]
)
def test_a_door_overrides_and_reads_nothing_private(path: str, name: str) -> None:
    """What a door has of its own may begin with an underscore; what is the Trainer's may not."""
    tree = ast.parse((PACKAGE / path).read_text())
    door = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    private = {name for name in dir(Trainer) if name.startswith("_") and not name.startswith("__")} - HOOKS
    used = {node.attr for node in ast.walk(door) if isinstance(node, ast.Attribute)}
    used |= {node.name for node in ast.walk(door) if isinstance(node, ast.FunctionDef)}
    assert private & used == set()


def test_only_engines_know_a_strategy_by_its_flags() -> None:
    """Whoever loads, saves or stops asks for the layout: who holds which weights, and who writes them."""
    flags = {"is_sharded", "gathers_to_save", "updates_by_itself", "casts_by_itself", "empties_parameters"}
    others = [path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name not in ("engines", "__pycache__")]
    found = [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for path, tree in trees(*others)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in flags
    ]
    assert found == []


def test_every_event_that_anybody_listens_to_is_an_event() -> None:
    heard = {
        f"{node.name}"
        for path, tree in trees("callbacks", "recipes", "engines", "training")
        for kind in ast.walk(tree)
        if isinstance(kind, ast.ClassDef) and any("Callback" in ast.unparse(base) for base in kind.bases)
        for node in kind.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("on_")
    }
    assert heard - set(EVENTS) == set()


def test_an_outcome_of_the_loop_is_a_value() -> None:
    for kind in (outcomes.Done, outcomes.Stopped, outcomes.Rewind):
        assert not issubclass(kind, BaseException)
