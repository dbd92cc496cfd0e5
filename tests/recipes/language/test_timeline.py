"""The picture of a recipe: in rows, in a terminal, as SVG."""

from __future__ import annotations

import unicodedata
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recipes.language.test_round_trip import plain_recipes, staged_recipes
from trainwright.config.shipped import SHIPPED
from trainwright.plots.drawing import COLOURS
from trainwright.recipes.language.reading import read_recipe
from trainwright.recipes.language.records import ModifierSpec, Recipe, Stage
from trainwright.recipes.language.timeline import Row, draw, draw_svg, timeline

RECIPE = read_recipe("""
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 20}
  - !LearningRateFunctionModifier {lr_func: cosine, init_lr: 1e-3, final_lr: 0.0, start_epoch: -1, end_epoch: 20}
pruning_modifiers:
  - !MagnitudePruningModifier
    {init_sparsity: 0.05, final_sparsity: 0.9, params: __ALL_PRUNABLE__, start_epoch: 5, end_epoch: 15,
     update_frequency: 0.5, mask_type: 2:4}
quantization_modifiers:
  - !QuantizationModifier {start_epoch: 15, freeze_bn_stats_epoch: 18}
  - !LayerPruningModifier {layers: [a, b, c, d, e], start_epoch: 10, end_epoch: 10}
""")


def columns_of(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in line)


def test_rows() -> None:
    assert timeline(RECIPE) == [
        Row("EpochRange", "the epochs of the training", 0.0, 20.0),
        Row("LearningRateFunction", "learning rate 0.001 → 0, cosine", 0.0, 20.0),
        Row("MagnitudePruning", "sparsity 5% → 90%, cubic, every 0.5 epochs, 2:4 mask, __ALL_PRUNABLE__", 5.0, 15.0),
        Row("Quantization", "int8 weights, batch norm fixed from epoch 18", 15.0, None),
        Row("LayerPruning", "without a, b, c, … (5)", 10.0, 10.0),
    ]


def test_the_picture() -> None:
    lines = draw(RECIPE, 80).split("\n")
    assert lines[0].split() == ["epoch", "0", "5", "10", "15", "20"]
    column = lines[0].index
    bars = {line.split()[0]: line for line in lines[2::2]}
    assert bars["MagnitudePruning"].index("█") == column("5")
    # Where one thing ends another begins.
    assert bars["MagnitudePruning"].rindex("█") + 1 == bars["Quantization"].index("█")
    assert bars["Quantization"].endswith("█▶")
    assert bars["LayerPruning"].split() == ["LayerPruning", "◆"]
    assert "  sparsity 5% → 90%, cubic, every 0.5 epochs, 2:4 mask, __ALL_PRUNABLE__" in lines
    assert max(map(len, lines)) <= 80


def test_the_picture_in_ascii() -> None:
    text = draw(RECIPE, 80, ascii_only=True)
    assert text.isascii()
    assert "sparsity 5% -> 90%" in text
    assert "####>" in text


@pytest.mark.parametrize("epochs", [0.001, 0.5, 1, 3, 7, 12, 99, 1000, 123456, 1e12])
@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_the_axis_can_be_read(epochs: float, width: int) -> None:
    recipe = read_recipe({"modifiers": [{"EpochRangeModifier": {"start_epoch": 0, "end_epoch": epochs}}]})
    numbers = draw(recipe, width).split("\n")[0].split()[1:]
    values = [float(number) for number in numbers if "…" not in number]
    assert values == sorted(set(values))
    assert values[0] == 0


@pytest.mark.slow
@given(plain_recipes | staged_recipes(), st.integers(0, 120), st.booleans())
def test_never_wider_than_asked_and_nothing_for_the_terminal_to_obey(recipe: Recipe, width: int, plain: bool) -> None:
    text = draw(recipe, width, ascii_only=plain)
    assert all(columns_of(line) <= max(width, 1) for line in text.split("\n"))
    assert not any(unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp") for character in text.replace("\n", ""))
    assert text.isascii() or not plain


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(plain_recipes | staged_recipes())
def test_the_svg_is_xml_with_a_bar_for_each_modifier(recipe: Recipe) -> None:
    root = ElementTree.fromstring(draw_svg(recipe))
    styles = [path.get("style", "") for path in root.iter("{http://www.w3.org/2000/svg}path")]
    # The arrows of those that never end have an outline, too.
    assert sum(f"fill: {COLOURS[0]}" in style and "stroke" not in style for style in styles) == len(recipe.modifiers)


def test_markup_in_a_recipe_stays_text() -> None:
    nasty = '<script>alert("x")</script>&'
    recipe = Recipe((Stage(nasty, (ModifierSpec("SetParamModifier", {"val": nasty}),)),))
    picture = draw_svg(recipe)
    assert "<script" not in picture
    assert nasty in "".join(ElementTree.fromstring(picture).itertext())


@given(
    st.sampled_from(sorted(SHIPPED["modifier"])),
    st.dictionaries(st.sampled_from(["params", "init_sparsity"]), st.none()),
)
def test_every_modifier_has_words(kind: str, arguments: dict[str, Any]) -> None:
    recipe = Recipe((Stage(None, (ModifierSpec(kind, arguments),)),))
    assert timeline(recipe)[0].label == kind.removesuffix("Modifier")
    assert draw(recipe, 80)
