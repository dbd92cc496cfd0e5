"""A recipe that is written and read is the same recipe, also to readers that follow YAML 1.1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trainwright.config.errors import ConfigError
from trainwright.config.shipped import SHIPPED
from trainwright.recipes.language.composing import compose_staged
from trainwright.recipes.language.expressions import is_expression
from trainwright.recipes.language.reading import read_recipe
from trainwright.recipes.language.records import METADATA, RESERVED, ModifierSpec, Recipe, Stage
from trainwright.recipes.language.writing import write_recipe


class TagLoader(yaml.SafeLoader):
    """PyYAML as it comes, with the names of modifiers as tags."""


def _pair(loader: Any, node: Any) -> tuple[str, Any]:
    return node.tag[1:], loader.construct_mapping(node, deep=True)


for _kind in SHIPPED["modifier"]:
    TagLoader.add_constructor(f"!{_kind}", _pair)


def values_of(value: Any) -> Any:
    """The value with the types of everything in it: 1, 1.0 and True are three things."""
    if isinstance(value, dict):
        return {(type(key), key): values_of(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [values_of(item) for item in value]
    return type(value), value


def contents(recipe: Recipe) -> Any:
    return values_of([[(spec.kind, spec.group, spec.arguments) for spec in stage.modifiers] for stage in recipe.stages])


def contents_by_pyyaml(text: str, recipe: Recipe) -> Any:
    data = yaml.load(text, Loader=TagLoader)  # noqa: S506 - a SafeLoader
    parts = [data[stage.name] if recipe.is_staged else data for stage in recipe.stages]
    return values_of(
        [
            [(kind, group, arguments) for group in part if "modifiers" in group for kind, arguments in part[group]]
            for part in parts
        ]
    )


def assert_comes_back(recipe: Recipe) -> None:
    text = write_recipe(recipe)
    back = read_recipe(text)
    assert back == recipe
    assert contents(back) == contents(recipe)
    assert contents_by_pyyaml(text, recipe) == contents(recipe)
    assert write_recipe(back) == text


AWKWARD = """
2:4 1e-4 no null ~ = << 0x10 1_000 2026-11-15 !x # *a &a re:.*weight __ALL_PRUNABLE__ 1:30:00 010 .inf eval ' " \\ ---
% @ ` 🙂 true 12 1.5 +1 1e5 [ { | > ? : - , .
"""
SPACED = ["", "- a", "a: b", "a #b", "a\nb", "\x85", "\u2028", "\r\n", "\ufeffx", "\x00\x1b", " lead", "trail ", "\t"]
awkward = st.sampled_from([*AWKWARD.split(), *SPACED])
texts = (awkward | st.text(max_size=12)).filter(lambda text: not is_expression(text))
texts = texts.filter(lambda text: not any("\ud800" <= character <= "\udfff" for character in text))
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([1e-4, 1e-7, 1e22, 1.0])
plain = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
sparsities = st.dictionaries(st.floats(0, 1), st.lists(texts, max_size=2), max_size=3)
arguments = st.dictionaries(texts | st.sampled_from(["params", "mask_type"]), plain, max_size=4)
arguments = st.tuples(arguments, st.none() | sparsities).map(
    lambda pair: {
        **{name: value for name, value in pair[0].items() if name not in ("final_sparsity", "num_grads")},
        **({} if pair[1] is None else {"final_sparsity": pair[1]}),
    }
)
groups = st.sampled_from(["modifiers", "pruning_modifiers", "training_modifiers", "modifiers: 2", "no modifiers"])
specs = st.builds(ModifierSpec, st.sampled_from(sorted(SHIPPED["modifier"])), arguments, groups)
modifiers = st.lists(specs, max_size=4).map(tuple)
run_types = st.sampled_from(["train", "oneshot", None])
metadata = st.dictionaries(texts, plain, max_size=3)
names = st.lists(
    texts.filter(lambda name: name and "modifiers" not in name and name not in RESERVED),
    unique=True,
    min_size=1,
    max_size=3,
)
versions = st.none() | st.sampled_from(["1.1.0", "1.1", "1"]) | texts
plain_recipes = st.builds(
    lambda specs, run_type, version, data: Recipe((Stage(None, specs, run_type),), version, data),
    modifiers,
    run_types,
    versions,
    st.none() | metadata,
)


@st.composite
def staged_recipes(draw: Any) -> Recipe:
    described = draw(st.booleans())
    stages = tuple(
        Stage(name, draw(modifiers), draw(run_types), draw(metadata) if described else None) for name in draw(names)
    )
    return Recipe(stages, draw(versions))


@pytest.mark.slow
@given(plain_recipes | staged_recipes())
def test_what_is_written_is_read_as_it_was(recipe: Recipe) -> None:
    assert_comes_back(recipe)


@pytest.mark.slow
@given(plain_recipes | staged_recipes(), plain_recipes | staged_recipes(), st.booleans())
def test_also_after_composing(base: Recipe, additional: Recipe, keep: bool) -> None:
    try:
        recipe = compose_staged(base, additional, keep_original_epochs=keep)
    except ConfigError:
        assert {stage.name for stage in base.stages} & {stage.name for stage in additional.stages}
        return
    assert len(recipe.modifiers) == len(base.modifiers) + len(additional.modifiers)
    assert_comes_back(recipe)


def test_the_values_that_were_lost_elsewhere(tmp_path: Path) -> None:
    """2:4 became 124, 1e-4 became text, null became "None"."""
    text = """
modifiers:
  - !MagnitudePruningModifier {mask_type: 2:4, init_sparsity: 1e-4, params: null, leave_enabled: true, x: 1.0, y: no}
"""
    recipe = read_recipe(text)
    wanted = {"mask_type": "2:4", "init_sparsity": 1e-4, "params": None, "leave_enabled": True, "x": 1.0, "y": "no"}
    assert recipe.modifiers[0].arguments == wanted
    path = tmp_path / "recipe.yaml"
    for one in (recipe, compose_staged(recipe, recipe, keep_original_epochs=True)):
        path.write_text(write_recipe(one), encoding="utf-8")
        assert read_recipe(path) == one
        assert_comes_back(one)
    assert "'2:4'" in path.read_text()
    assert "0.0001" in path.read_text()


def test_shared_values_are_written_out() -> None:
    shared = ["a", "b"]
    text = write_recipe(
        Recipe((Stage(None, tuple(ModifierSpec("SetParamModifier", {"params": shared}) for _ in range(2))),))
    )
    assert "&" not in text
    assert "*" not in text


def test_a_group_is_one_key() -> None:
    specs = [
        ModifierSpec("DistillationModifier", {"n": n}, group)
        for n, group in enumerate(["modifiers", "x_modifiers"] * 2)
    ]
    stage = Stage(None, tuple(specs))
    assert [spec.arguments["n"] for spec in stage.modifiers] == [0, 2, 1, 3]
    assert_comes_back(Recipe((stage,)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModifierSpec("Nothing"), "there is no modifier 'Nothing'"),
        (lambda: ModifierSpec("SetParamModifier", {"val": "eval(x)"}), "was not evaluated"),
        (lambda: ModifierSpec("SetParamModifier", {"val": float("nan")}), "nan is not a number"),
        (lambda: ModifierSpec("SetParamModifier", {"val": object()}), "a recipe holds text, numbers"),
        (lambda: ModifierSpec("SetParamModifier", {"val": "\ud800"}), "half a character"),
        (lambda: ModifierSpec("SetParamModifier", {}, "group"), "must have 'modifiers' in its name"),
        (lambda: Stage("a_modifiers"), "cannot be the name of a stage"),
        (lambda: Stage("version"), "cannot be the name of a stage"),
        (lambda: Stage("a", run_type="never"), "write train or oneshot"),  # type: ignore[bad-argument-type]
        (lambda: Recipe(()), "one stage without a name, or stages with names"),
        (lambda: Recipe((Stage(None), Stage("a"))), "one stage without a name"),
        (lambda: Recipe((Stage("a"), Stage("a"))), "two stages have the same name"),
        (lambda: Recipe((Stage("a"),), metadata={}), f"each stage has its own {METADATA}"),
        (lambda: Recipe((Stage(None, metadata={}),)), "belongs to the recipe"),
        (lambda: Recipe((Stage("a", metadata={}), Stage("b"))), "either all stages"),
    ],
)
def test_records_that_could_not_be_written(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
