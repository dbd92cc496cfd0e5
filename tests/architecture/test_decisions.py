"""Code decides by what things are, never by what their classes and modules are called."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "trainwright"
NAMES = {"__module__", "__qualname__", "__name__"}
#: Methods of a string that ask, and of a table that look up.
ASKING = {"startswith", "endswith", "removeprefix", "split", "partition", "rpartition", "get", "count", "find"}


def reads_a_name(node: ast.AST) -> bool:
    """Whether ``node`` reads the name of a class, function or module: ``x.__name__``, ``getattr(x, "__name__")``."""
    return any(
        (isinstance(part, ast.Attribute) and part.attr in NAMES)
        or (isinstance(part, ast.Call) and any(isinstance(a, ast.Constant) and a.value in NAMES for a in part.args))
        for part in ast.walk(node)
    )


def decides_by_a_name(node: ast.AST) -> bool:
    """Whether ``node`` compares such a name, asks how it begins, looks it up, or collects names to do so."""
    match node:
        case ast.Compare():
            return reads_a_name(node)
        case ast.Call(func=ast.Attribute(attr=method, value=text)) if method in ASKING:
            return reads_a_name(text) or any(reads_a_name(argument) for argument in node.args)
        case ast.Subscript(slice=key, ctx=ast.Load()):
            return reads_a_name(key)
        case ast.SetComp(elt=element) | ast.DictComp(key=element):
            return reads_a_name(element)
    return False


def decisions() -> Iterator[str]:
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        owners = {
            part: function.name
            for function in ast.walk(tree)
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
            for part in ast.walk(function)
        }
        for node in ast.walk(tree):
            if decides_by_a_name(node) and ast.unparse(node) != "__name__ == '__main__'":
                yield f"{path.relative_to(PACKAGE)}:{owners.get(node, '')} {ast.unparse(node)}"


#: Functions that must go by a name, and why.
ALLOWED = {
    # Python keeps no other record of who wrote a class.
    "config/origin.py:library_of": "the one place for it",
    "config/origin.py:library_running": "the same for a frame",
    "config/origin.py:is_users_own": "Python's name of the script that runs",
    # A definition that is run again, in a notebook say, is another object with the same name.
    "config/registry.py:_origin": "the same definition, or another one of that name",
    # The user, or the model's author, says which classes are meant, by their names.
    "engines/torch/strategies/blocks.py:blocks_of": "transformer_layer_cls_to_wrap, _no_split_modules",
    "recipes/quantization/choosing.py:fits": "a recipe names types of layers",
    "recipes/quantization/choosing.py:_refuse_strangers": "which of them there are, for the message",
    # Other libraries' conventions and files that know only the names of classes.
    "engines/torch/targets.py:shifts_labels": "...ForCausalLM and the like shift labels",
    "core/signatures.py:label_names": "...QuestionAnswering has two labels, as transformers' find_labels",
    "training/restore.py:restore_callbacks": "trainer_state.json keeps callbacks' states by class name",
    "training/resume.py:was_finished": "finished.json names the callback that ended a run",
    "experiment/schema.py:experiment_schema": "pydantic files its definitions under the names of classes",
    # Generators that another library wrote in C have nothing else that tells.
    "randomness/own_generators.py:_sounds_random": "a class called ...Random or ...RNG",
}


@pytest.mark.slow
def test_nothing_is_decided_by_the_name_of_a_class_or_module() -> None:
    """Compare objects instead (``is``, ``isinstance``), or let the class declare what matters about it."""
    found = list(decisions())
    assert [decision for decision in found if decision.split(" ")[0] not in ALLOWED] == []
    assert ALLOWED.keys() == {decision.split(" ")[0] for decision in found}, "an exception that is no longer needed"


@pytest.mark.parametrize(
    "code",
    [
        "type(x).__name__ == 'Conv1D'",
        "type(x).__module__.startswith('trainwright.')",
        "getattr(x, '__module__', '') in KNOWN",
        "KINDS[type(x).__qualname__]",
        "{cls.__name__ for cls in type(x).__mro__} & KNOWN",
        "KINDS.get(type(x).__name__)",
    ],
)
def test_such_a_decision_is_seen(code: str) -> None:
    assert any(decides_by_a_name(node) for node in ast.walk(ast.parse(code)))


def test_to_print_a_name_is_no_decision() -> None:
    code = "raise ValueError(f'{type(x).__name__} has no {name}'); names[type(x).__name__] = x"
    assert not any(decides_by_a_name(node) for node in ast.walk(ast.parse(code)))
