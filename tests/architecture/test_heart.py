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


@pytest.mark.slow
def test_nothing_below_the_face_takes_a_trainer() -> None:
    found = [
        f"{path}:{node.lineno}"
        for path, tree in trees(*BELOW_THE_FACE)
        for node in ast.walk(tree)
        if isinstance(node, ast.arg) and node.arg == "trainer"
    ]
    assert found == []


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_nobody_outside_the_engines_sets_what_is_an_engines() -> None:
    """What an engine is to know it is told by its methods; ``core/engine.py`` names them all, and types check that."""
    others = [path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name not in ("engines", "__pycache__")]
    found = [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for path, tree in trees(*others)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value).split(".")[-1] in ("engine", "boundary", "weights")
        and not ast.unparse(node).startswith("self.")
    ]
    assert found == []


@pytest.mark.slow
def test_arguments_have_a_type() -> None:
    """Wherever a parameter is called ``args`` and means the arguments of a training."""
    found = [
        f"{path}:{node.lineno}"
        for path, tree in trees("core", "loop", "training", "trainer", "callbacks", "config", "checkpoint", "data")
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in (*function.args.args, *function.args.kwonlyargs)
        if node.arg == "args" and node.annotation is not None and ast.unparse(node.annotation) == "Any"
    ]
    assert [place for place in found if place.split(":")[0] not in UNTYPED] == []


#: ``ours`` and ``is_ours`` make typed arguments of anybody's.
UNTYPED = {"config/fields/__init__.py"}

#: Names of torch's that objects of ours have too.
TORCHS = {"_buffers", "_parameters", "_values", "_shutdown_workers", "_try_get_data", "_exit"}


def private_names(tree: ast.Module) -> set[str]:
    """What the classes of a module call theirs."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            found.add(node.attr)
        elif isinstance(node, ast.ClassDef):
            found |= {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            found |= {
                target.id
                for part in node.body
                if isinstance(part, (ast.Assign, ast.AnnAssign))
                for target in (part.targets if isinstance(part, ast.Assign) else [part.target])
                if isinstance(target, ast.Name)
            }
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


@pytest.mark.slow
def test_no_private_attribute_of_another_modules_object_is_read() -> None:
    """Those that subclasses of a Trainer override begin with an underscore too; they are hooks, and listed."""
    everything = [path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"]
    own = {path: private_names(tree) for path, tree in trees(*everything)}
    ours = set().union(*own.values()) - HOOKS - TORCHS
    found = [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for path, tree in trees(*everything)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ours - own[path]
        and ast.unparse(node.value) not in ("self", "cls", "super()")
        # The face is three files.
        and not (path.startswith("trainer/") and node.attr == "_setup")
    ]
    assert found == []


@pytest.mark.slow
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
