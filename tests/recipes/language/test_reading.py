"""Recipes from files, cards, text and mappings, in both generations of the language."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainwright.config.errors import ConfigError
from trainwright.recipes.language.arguments import read_recipe_args
from trainwright.recipes.language.reading import read_recipe

RECIPE = """\
version: 1.1.0
num_epochs: 30                 # root variables
prune_end: eval(num_epochs * 0.8)
training_modifiers:            # any key containing "modifiers"
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: eval(num_epochs)}
pruning_modifiers:
  - !MagnitudePruningModifier
      params: __ALL_PRUNABLE__
      init_sparsity: 0.05
      final_sparsity: 0.9
      start_epoch: 2
      end_epoch: eval(prune_end)
      update_frequency: 0.5
"""

EPOCHS = "- !EpochRangeModifier {start_epoch: 0, end_epoch: 3}"


def arguments(text: str, kind: str | None = None, **values: Any) -> dict[str, Any]:
    recipe = read_recipe(text, values)
    return next(spec for spec in recipe.modifiers if kind is None or spec.kind == kind).arguments


def in_arguments(value: str, variables: str = "") -> Any:
    """What a value in a modifier's arguments comes to."""
    return arguments(f"{variables}\nmodifiers:\n- !SetParamModifier\n  val: {value}\n")["val"]


def test_the_language_by_example() -> None:
    recipe = read_recipe(RECIPE)
    assert (recipe.version, recipe.is_staged, recipe.min_epochs, recipe.max_epochs) == ("1.1.0", False, 0.0, 30.0)
    epochs, pruning = recipe.modifiers
    assert (epochs.kind, epochs.group, epochs.where) == ("EpochRangeModifier", "training_modifiers", "recipe:5")
    assert epochs.arguments == {"start_epoch": 0.0, "end_epoch": 30}
    assert (pruning.kind, pruning.group, pruning.where) == ("MagnitudePruningModifier", "pruning_modifiers", "recipe:7")
    assert pruning.arguments["end_epoch"] == 24.0
    assert recipe.variables == {"num_epochs": 30, "prune_end": 24.0}


@pytest.mark.parametrize("name", ["recipe.yaml", "recipe.yml", "recipe.YAML", "recipe"])
def test_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(RECIPE)
    for source in (path, str(path)):
        recipe = read_recipe(source)
        assert recipe == read_recipe(RECIPE)
        assert recipe.modifiers[1].where == f"{path}:7"


def test_json(tmp_path: Path) -> None:
    data = {"epochs": 3, "modifiers": [{"EpochRangeModifier": {"start_epoch": 0, "end_epoch": "eval(epochs)"}}]}
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(data, indent=1))
    assert read_recipe(path) == read_recipe(data) == read_recipe(json.dumps(data))


CARD = f"""\
<!--
a licence
-->

---
# a comment
rule: a---b
text: "x --- y"
modifiers:
  {EPOCHS}
---
# A card
---
more: text
"""


def test_markdown_cards(tmp_path: Path) -> None:
    path = tmp_path / "card.md"
    path.write_text(CARD)
    recipe = read_recipe(path)
    assert recipe.modifiers[0].where == f"{path}:10"
    assert recipe.variables == {"rule": "a---b", "text": "x --- y"}
    assert read_recipe(CARD) == recipe
    path.write_text(CARD.replace("\n---\n", "\n+++\n").replace("\n", "\r\n"))
    assert read_recipe(path) == recipe


def test_a_card_needs_front_matter(tmp_path: Path) -> None:
    path = tmp_path / "card.md"
    for text in ("# A card\n", "---\nmodifiers: []\n"):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"card\.md has no recipe: .*between two lines ---"):
            read_recipe(path)


def test_text_may_begin_like_a_yaml_document() -> None:
    assert read_recipe(f"---\nmodifiers:\n{EPOCHS}\n") == read_recipe(f"modifiers:\n{EPOCHS}\n")


def test_modifiers_alone() -> None:
    assert [spec.kind for spec in read_recipe(f"\n{EPOCHS}\n").modifiers] == ["EpochRangeModifier"]
    assert [spec.kind for spec in read_recipe("!EpochRangeModifier {end_epoch: 3}").modifiers] == ["EpochRangeModifier"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("zoo:cv/resnet", "the SparseZoo is gone: pass the recipe as a file"),
        ("nothing.yaml", r"There is no recipe file nothing\.yaml"),
        ("nothing", "'nothing' is neither a file that is there .* nor the text of a recipe"),
        ("x" * 5000, "neither a file"),
        (3, "not a int"),
        ("\n", "holds no recipe"),
        ("a: 1\nb: 2\n", "has no modifiers: they are listed under keys"),
        (f"modifiers:\n{EPOCHS}\nend: 3\nstage:\n  x_modifiers: []\n", "recipe:1: modifiers stands beside the stage"),
        (
            "a: 1\nprune:\n  prune_modifier: [1]\nmodifiers: []\n",
            "recipe:2: prune is neither a variable nor a group of",
        ),
        (
            "x_stage: {a: 1}\nmodifiers: []\n",
            "recipe:1: x_stage is neither .* nor a stage: no key in it has 'modifiers'",
        ),
        (
            "stage:\n  pruning_modifier: {a: 1}\n  modifiers: []\n",
            r"recipe:2: pruning_modifier is neither .*did you mean 'pruning_mod",
        ),
        ("a: 1\nmodifiers:\n\n- !EpochRangModifier {}\n", r"recipe:4: there is no modifier 'EpochRangModifier' \(did"),
        ("modifiers:\n- !SparseGPTModifier {}\n", "recipe:2: .*llm-compressor"),
        (f"stuff:\n{EPOCHS}\nmodifiers: []\n", "recipe:2: !EpochRangeModifier stands where no modifier can be"),
        ("modifiers:\n- !SetParamModifier\n  val: !SetParamModifier {}\n", "recipe:3: !SetParamModifier stands where"),
        ("modifiers:\n- 3\n", "recipe:2: modifiers has something that is no modifier"),
        ("modifiers:\n- EpochRangeModifier: 3\n", "recipe:2: EpochRangeModifier in modifiers has no arguments"),
        ("modifiers: 3\nb: 1\n", "recipe:1: modifiers is a list of modifiers"),
        ("modifiers:\n- !SetParamModifier {val: .nan}\n", "recipe:2: nan is not a number to train with"),
        ("modifiers:\n- !SetParamModifier {val: 1e999}\n", "recipe:2: inf is not a number to train with"),
        ("modifiers:\n- !!python/object/apply:os.system ['x']\n", "recipe:2: the tag !!python"),
        ("modifiers:\n- !os.system ['x']\n", "recipe:2: the tag !os.system is not allowed"),
        ("modifiers: []\nrun_type: never\n", "recipe:2: run_type is 'never': write train or oneshot"),
        ("modifiers: []\n__metadata__: 3\n", "recipe:2: __metadata__ is a mapping"),
        ({"modifiers": [{"Nothing": {}}]}, r"recipe\['modifiers'\]\[0\]\['Nothing'\]: there is no modifier 'Nothing'"),
        ({"modifiers": [{"SetParamModifier": {"val": {1, 2}}}]}, "a set: a recipe holds text, numbers, lists"),
        ("n: " + "9" * 5000 + "\nmodifiers: []\n", "recipe:1: a number of 5000 digits is too long"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(source: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_recipe(source)


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder: name the recipe file in it"):
        read_recipe(tmp_path)


def test_mappings_with_and_without_marks() -> None:
    written: dict[str, Any] = {
        "modifiers": [{"!EpochRangeModifier": {"start_epoch": 0, "end_epoch": 3}}, {"DistillationModifier": None}]
    }
    recipe = read_recipe(written)
    assert [(spec.kind, spec.arguments) for spec in recipe.modifiers] == [
        ("EpochRangeModifier", {"start_epoch": 0, "end_epoch": 3}),
        ("DistillationModifier", {}),
    ]
    recipe.modifiers[0].arguments["start_epoch"] = 5
    assert written["modifiers"][0]["!EpochRangeModifier"]["start_epoch"] == 0


def test_a_modifier_without_arguments() -> None:
    assert (
        read_recipe("distillation_modifiers:\n  - !DistillationModifier\n  - !DistillationModifier {}\n")
        .modifiers[0]
        .arguments
        == {}
    )


def test_sparsities_of_layers_are_numbers_and_layers_are_text() -> None:
    found = arguments(
        "modifiers:\n- !GMPruningModifier\n  params: []\n  final_sparsity: {0.8: [a], '0.9': [b]}\n"
        "  scheme: {0: x, '1.5': y}\n"
    )
    assert found["final_sparsity"] == {0.8: ["a"], 0.9: ["b"]}
    assert found["scheme"] == {"0": "x", "1.5": "y"}
    with pytest.raises(ConfigError, match="final_sparsity has a number twice"):
        read_recipe("modifiers:\n- !GMPruningModifier {final_sparsity: {0.8: [a], 0.80: [b]}}\n")


def test_aliases_share_arguments() -> None:
    recipe = read_recipe(
        "modifiers:\n- &p !SetParamModifier {val: 1, params: [a]}\n- !SetParamModifier {<<: *p, val: 2}\n- *p\n"
    )
    assert [spec.arguments["val"] for spec in recipe.modifiers] == [1, 2, 1]
    assert recipe.modifiers[1].arguments["params"] == ["a"]


# ---- variables and expressions in place


def test_numbers_are_yaml_12() -> None:
    """1e-4 is a number, in variables, in arguments and in expressions; 2:4 is text."""
    assert in_arguments("eval(init_lr*0.1)", "init_lr: 1e-4") == pytest.approx(1e-5)
    assert in_arguments("1e-4") == 1e-4
    assert in_arguments("2:4") == "2:4"
    assert in_arguments("eval(mask)", "mask: 2:4") == "2:4"


@pytest.mark.parametrize(
    ("text", "value"), [("eval(-1)", -1), ("eval(-x)", -3), ("eval(+x)", 3), ("eval(- x ** 2)", -9)]
)
def test_signs(text: str, value: int) -> None:
    assert in_arguments(text, "x: 3") == value


def test_variables_in_any_order_and_anywhere() -> None:
    text = "{a: [eval(two), {b: eval(two * 2)}], c: eval(names), d: eval(nothing), e: eval(flag)}"
    variables = "two: eval(one + 1)\none: 1\nnames: [x, eval(two)]\nnothing: null\nflag: true"
    assert in_arguments(text, variables) == {"a": [2, {"b": 4}], "c": ["x", 2], "d": None, "e": True}


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ("a: eval(b)\nb: eval(c + 1)\nc: eval(a * 2)", r"recipe:1: variables need each other: a -> b -> c -> a"),
        ("a: eval(a)", r"recipe:1: variables need each other: a -> a"),
        (
            "a: eval(num_epoch)\nnum_epochs: 3",
            r"recipe:1: eval\(num_epoch\): there is no variable 'num_epoch' \(did you",
        ),
        ("a: eval(1", "recipe:1: eval.1 is not closed"),
        ("a: eval('eval(1)')", r"gives another expression, eval\(1\)"),
        ("a: eval(1) + eval(2)", "this is not an expression"),
        ("n: [1, 2]\na: eval(n + 1)", r"recipe:2: eval\(n \+ 1\): n is a list: it can only stand alone, eval\(n\)"),
        ("\n".join(f"v{i}: eval(v{i + 1})" for i in range(70)) + "\nv70: 1", "more than 64 variables in a chain"),
        (
            "a0: [x, x, x, x, x, x, x, x]\n" + "\n".join(f"a{i + 1}: [eval(a{i}), eval(a{i})]" for i in range(30)),
            "unfolds to more than 50000 values",
        ),
    ],
)
def test_variables_that_cannot_be(variables: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_recipe(f"{variables}\nmodifiers: []\n")


def test_expressions_with_commas_in_brackets_need_quotes() -> None:
    with pytest.raises(ConfigError, match=r"recipe:2: eval\(max\(1 is not closed.*put it in quotes"):
        read_recipe("modifiers:\n- !EpochRangeModifier {end_epoch: eval(max(1, 2))}\n")
    assert arguments("modifiers:\n- !EpochRangeModifier {end_epoch: 'eval(max(1, 2))'}\n") == {"end_epoch": 2}


def test_a_variable_may_be_a_mapping() -> None:
    text = (
        "sparsities: &s\n  0.8: [a]\n  0.9: [b]\nmodifiers:\n- !GMPruningModifier {final_sparsity: eval(sparsities)}\n"
    )
    assert arguments(text)["final_sparsity"] == {0.8: ["a"], 0.9: ["b"]}
    assert arguments(text.replace("eval(sparsities)", "*s"))["final_sparsity"] == {0.8: ["a"], 0.9: ["b"]}


# ---- recipe_args


def test_a_value_may_come_from_outside_alone() -> None:
    text = "stage:\n  modifiers:\n  - !EpochRangeModifier {end_epoch: eval(warm_up + 1)}\n"
    assert arguments(text, warm_up=3) == {"end_epoch": 4}
    with pytest.raises(ConfigError, match="there is no variable 'warm_up'"):
        read_recipe(text)
    with pytest.raises(ConfigError, match=r"has no variable 'warmup' \(did you mean 'warm_up'"):
        read_recipe(text, {"warmup": 3})


@pytest.mark.parametrize(
    "given",
    [
        {"num_epochs": 10, "prune_end": 5.5},
        '{"num_epochs": 10, "prune_end": 5.5}',
        "num_epochs=10,prune_end=5.5",
        "num_epochs:10, prune_end : 5.5",
        "num_epochs=10,prune_end=eval(num_epochs * 0.55)",
    ],
)
def test_recipe_args(given: Any) -> None:
    recipe = read_recipe(RECIPE, given)
    assert recipe.max_epochs == 10
    assert recipe.modifiers[1].arguments["end_epoch"] == pytest.approx(5.5)


def test_values_in_the_short_form() -> None:
    assert read_recipe_args("a=1,b=1.5,c=1e-4,d=true,e=null,f=text,g=2:4,h=[1, 2],i='3,4',j=,k=C:/x") == {
        "a": 1,
        "b": 1.5,
        "c": 1e-4,
        "d": True,
        "e": None,
        "f": "text",
        "g": "2:4",
        "h": [1, 2],
        "i": "3,4",
        "j": None,
        "k": "C:/x",
    }
    assert read_recipe_args("") == read_recipe_args(None) == read_recipe_args({}) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_epoch": 3}, r"has no variable 'num_epoch' \(did you mean 'num_epochs'\?\)"),
        ("zzz=3", "has no variable 'zzz'; it has num_epochs, prune_end"),
        ("version=3", "has no variable 'version'"),
        ("training_modifiers=[]", "has no variable 'training_modifiers'"),
        ("num_epochs", "'num_epochs' is not name=value"),
        ("num_epochs=1,,", "'' is not name=value"),
        ("=1", "'=1' is not name=value"),
        ("num_epochs=1,num_epochs=2", "num_epochs is there twice"),
        ('{"num_epochs": 1', "recipe_args:1:"),
        ([1], "recipe_args is a list"),
    ],
)
def test_recipe_args_that_do_not_fit(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_recipe(RECIPE, given)


def test_a_recipe_that_was_read_has_no_variables_left() -> None:
    recipe = read_recipe(RECIPE)
    assert read_recipe(recipe) is recipe
    with pytest.raises(ConfigError, match="pass recipe_args to read_recipe"):
        read_recipe(recipe, {"num_epochs": 3})


# ---- stages

STAGED = """\
epochs: 3
scale: 10
one:
  epochs: 5
  a_modifiers:
    - !EpochRangeModifier {start_epoch: 0, end_epoch: eval(epochs)}
two:
  epochs: eval(epochs * scale)
  own: eval(epochs + 1)
  b_modifiers:
    - !EpochRangeModifier {start_epoch: 5, end_epoch: eval(own)}
three:
  c_modifiers:
    - !EpochRangeModifier {start_epoch: 40, end_epoch: eval(epochs + 50)}
"""


def test_variables_of_stages_stand_before_those_of_the_recipe() -> None:
    recipe = read_recipe(STAGED)
    assert [stage.name for stage in recipe.stages] == ["one", "two", "three"]
    assert [spec.arguments["end_epoch"] for spec in recipe.modifiers] == [5, 31, 53]
    assert recipe.stages[1].variables == {"epochs": 30, "own": 31}
    assert recipe.stage_epochs() == {"one": (0, 5), "two": (5, 31), "three": (40, 53)}


def test_recipe_args_reach_every_stage() -> None:
    assert [spec.arguments["end_epoch"] for spec in read_recipe(STAGED, "epochs=7").modifiers] == [7, 8, 57]
    assert [spec.arguments["end_epoch"] for spec in read_recipe(STAGED, "own=9").modifiers] == [5, 9, 53]


def test_epochs_of_stages_that_do_not_say() -> None:
    """-1 is where the stage before ends, and where the next begins."""

    def stage(**arguments: float) -> dict[str, Any]:
        return {"modifiers": [{"DistillationModifier": arguments}]}

    recipe = read_recipe(
        {"a": stage(start_epoch=-1, end_epoch=-1), "b": stage(start_epoch=3), "c": stage(start_epoch=-1)}
    )
    assert recipe.stage_epochs() == {"a": (0, 3), "b": (3, 3), "c": (3, -1)}
    assert read_recipe({"modifiers": [{"DistillationModifier": {}}]}).stage_epochs() == {"all": (0, 0)}


def test_epochs_are_whole() -> None:
    recipe = read_recipe("modifiers:\n- !DistillationModifier {start_epoch: 1.5, end_epoch: 2.25}\n")
    assert (recipe.min_epochs, recipe.max_epochs) == (1.0, 3.0)
    assert read_recipe("modifiers:\n- !DistillationModifier {start_epoch: 4.5}\n").max_epochs == 5.0
    assert read_recipe("modifiers:\n- !DistillationModifier\n").max_epochs == 0.0


# ---- the newer style


def test_the_newer_style() -> None:
    recipe = read_recipe("""\
sparsity: 0.5
pruning_train_stage:
  pruning_modifiers:
    MagnitudePruningModifier:
      targets: ["re:.*weight"]
      init_sparsity: 0.0
      final_sparsity: eval(sparsity)
      update_scheduler: linear
      mask_structure: block_4
      start: 0
      end: 2.0
      update: 0.5
    LayerPruningModifier: {targets: [a.b], start: 1}
  distillation_modifiers:
    - OutputDistillationModifier: {targets: [a], start: 0.0}
    - OutputDistillationModifier: {targets: [b], start: 1.0}
shrink:
  run_type: oneshot
  modifiers:
    ConstantPruningModifier: {targets: __ALL__, start: 0}
""")
    assert [(stage.name, stage.run_type) for stage in recipe.stages] == [
        ("pruning_train_stage", "train"),
        ("shrink", "oneshot"),
    ]
    assert [(spec.kind, spec.arguments) for spec in recipe.modifiers] == [
        (
            "MagnitudePruningModifier",
            {
                "params": ["re:.*weight"],
                "init_sparsity": 0.0,
                "final_sparsity": 0.5,
                "inter_func": "linear",
                "mask_type": "block_4",
                "start_epoch": 0,
                "end_epoch": 2.0,
                "update_frequency": 0.5,
            },
        ),
        ("LayerPruningModifier", {"layers": ["a.b"], "start_epoch": 1}),
        ("OutputDistillationModifier", {"targets": ["a"], "start_epoch": 0.0}),
        ("OutputDistillationModifier", {"targets": ["b"], "start_epoch": 1.0}),
        ("ConstantPruningModifier", {"params": "__ALL__", "start_epoch": 0}),
    ]
    assert recipe.modifiers[1].where == "recipe:13"


def test_stages_under_one_key() -> None:
    recipe = read_recipe({"stages": {"a": {"modifiers": {"DistillationModifier": {"start": 1}}}}, "args": {"x": 1}})
    assert [stage.name for stage in recipe.stages] == ["a"]
    assert recipe.variables == {"x": 1}


def test_both_spellings_are_one_too_many() -> None:
    with pytest.raises(ConfigError, match="EpochRangeModifier has both start and start_epoch: leave one out"):
        read_recipe("modifiers:\n- EpochRangeModifier: {start: 0, start_epoch: 1}\n")


def test_metadata_of_stages_is_all_or_none() -> None:
    text = "a:\n  __metadata__: {x: 1}\n  modifiers: []\nb:\n  modifiers: []\n"
    with pytest.raises(ConfigError, match="either all stages have __metadata__ or none; there is none in b"):
        read_recipe(text)
    shared = read_recipe("__metadata__: {x: 1}\na:\n  modifiers: []\nb:\n  modifiers: []\n")
    assert [stage.metadata for stage in shared.stages] == [{"x": 1}, {"x": 1}]
    with pytest.raises(ConfigError, match="is there for all stages already"):
        read_recipe(f"__metadata__: {{y: 1}}\n{text}")
