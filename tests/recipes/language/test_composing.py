"""Recipes one after the other, and the metadata that is written with them."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from trainwright.config.arguments import TrainingArguments
from trainwright.config.errors import ConfigError
from trainwright.config.warnings import TrainwrightWarning
from trainwright.recipes.language.composing import compose_staged
from trainwright.recipes.language.metadata import metadata_from, with_metadata
from trainwright.recipes.language.reading import read_recipe
from trainwright.recipes.language.records import Recipe
from trainwright.recipes.language.writing import write_recipe
from trainwright.version import __version__


def recipe_of(*modifiers: tuple[str, dict[str, Any]], **more: Any) -> Recipe:
    return read_recipe({"modifiers": [{f"!{kind}": arguments} for kind, arguments in modifiers], **more})


def staged(*names: str, end: int = 4) -> Recipe:
    one = {"modifiers": [{"EpochRangeModifier": {"start_epoch": 0, "end_epoch": end}}]}
    return read_recipe(dict.fromkeys(names, one))


BASE = recipe_of(
    ("EpochRangeModifier", {"start_epoch": 0, "end_epoch": 9.5}),
    ("DistillationModifier", {"end_epoch": -1}),
    ("DistillationModifier", {}),
    ("ConstantPruningModifier", {"params": "__ALL__", "start_epoch": 0.0, "end_epoch": -1.0}),
    ("LayerPruningModifier", {"layers": ["a"], "end_epoch": -1}),
    ("QuantizationModifier", {"start_epoch": 5}),
    ("SetWeightDecayModifier", {"weight_decay": 0.0}),
)


def test_what_is_open_in_the_base_ends_with_it() -> None:
    first, second = compose_staged(BASE, BASE).stages
    assert [spec.arguments.get("end_epoch") for spec in first.modifiers] == [9.5, 10, 10, 10, -1, None, None]
    # The recipe that comes after it is at the end, and stays open.
    assert [spec.arguments.get("end_epoch") for spec in second.modifiers] == [19.5, -1, None, -1, -1, None, None]
    assert [spec.arguments["start_epoch"] for spec in second.modifiers] == [10, 10, 10, 10, 10, 15, 10]


def test_a_base_without_epochs_stays_open() -> None:
    constant = recipe_of(("ConstantPruningModifier", {"params": "__ALL__", "end_epoch": -1}))
    assert compose_staged(constant, constant).stages[0].modifiers[0].arguments["end_epoch"] == -1


def test_every_moment_is_moved() -> None:
    additional = recipe_of(
        ("EpochRangeModifier", {"start_epoch": -1, "end_epoch": 3}),
        ("ACDCPruningModifier", {"start_epoch": 2, "end_epoch": 6, "update_frequency": 2}),
        (
            "QuantizationModifier",
            {"start_epoch": 1.5, "disable_quantization_observer_epoch": 2, "freeze_bn_stats_epoch": None},
        ),
        ("QuantizationModifier", {"disable_quantization_observer_epoch": -1, "freeze_bn_stats_epoch": 2.5}),
        ("LayerThinningModifier", {"update_epochs": [1, 2.5], "param_group_dependency_map": {}}),
        (
            "LearningRateModifier",
            {
                "lr_class": "MultiStepLR",
                "lr_kwargs": {"gamma": 0.1, "milestones": [1, 2]},
                "init_lr": 0.1,
                "start_epoch": 0,
            },
        ),
    )
    moved = [spec.arguments for spec in compose_staged(BASE, additional).stages[1].modifiers]
    assert moved[0] == {"start_epoch": 10, "end_epoch": 13}
    assert moved[1] == {"start_epoch": 12, "end_epoch": 16, "update_frequency": 2}
    assert all(type(value) is int for value in moved[1].values())
    assert moved[2] == {
        "start_epoch": 11.5,
        "disable_quantization_observer_epoch": 12,
        "freeze_bn_stats_epoch": None,
    }
    assert moved[3] == {"start_epoch": 10, "disable_quantization_observer_epoch": 10, "freeze_bn_stats_epoch": 12.5}
    assert moved[4]["update_epochs"] == [11, 12.5]
    assert moved[5]["lr_kwargs"] == {"gamma": 0.1, "milestones": [11, 12]}
    # The recipes themselves are as they were.
    assert additional.modifiers[4].arguments["update_epochs"] == [1, 2.5]


def test_epochs_can_be_kept() -> None:
    both = compose_staged(BASE, BASE, keep_original_epochs=True)
    assert [stage.modifiers for stage in both.stages] == [BASE.stages[0].modifiers] * 2


@pytest.mark.parametrize(
    ("base", "additional", "names"),
    [
        (recipe_of(), recipe_of(), ["stage_0", "stage_1"]),
        (staged("a", "b"), recipe_of(), ["a", "b", "stage_3"]),
        (recipe_of(), staged("a", "b"), ["pre_a", "a", "b"]),
        (staged("a"), staged("b", "c"), ["a", "b", "c"]),
    ],
)
def test_names_of_stages(base: Recipe, additional: Recipe, names: list[str]) -> None:
    composed = compose_staged(base, additional)
    assert [stage.name for stage in composed.stages] == names
    assert composed.modifiers == tuple(spec for stage in composed.stages for spec in stage.modifiers)


def test_names_must_differ() -> None:
    with pytest.raises(ValueError, match="Both recipes have a stage b: rename it"):
        compose_staged(staged("a", "b"), staged("b", "c"))
    with pytest.raises(ValueError, match="stage_2"):
        compose_staged(staged("stage_2"), recipe_of())


def test_three_in_a_row(tmp_path: Path) -> None:
    """What was composed and saved is composed again, as the recipe beside a model is."""
    path = tmp_path / "recipe.yaml"
    epochs = recipe_of(("EpochRangeModifier", {"start_epoch": 0, "end_epoch": 4}))
    path.write_text(write_recipe(compose_staged(epochs, epochs)))
    composed = compose_staged(read_recipe(path), epochs)
    assert composed.stage_epochs() == {"stage_0": (0, 4), "stage_1": (4, 8), "stage_3": (8, 12)}
    assert composed.max_epochs == 12


def test_metadata_moves_into_the_stages() -> None:
    described = with_metadata(recipe_of(), {"seed": 1})
    composed = compose_staged(described, recipe_of())
    assert [stage.metadata for stage in composed.stages] == [{"seed": 1}, {}]
    assert read_recipe(write_recipe(composed)) == composed
    assert [stage.metadata for stage in compose_staged(recipe_of(), recipe_of()).stages] == [None, None]


@dataclass
class DataArguments:
    max_length: int = 128
    folder: Path = Path("data")
    seed: int = 42


def test_metadata_from_arguments() -> None:
    arguments = TrainingArguments("out", seed=42, learning_rate=1e-4, report_to="none")
    found = metadata_from(
        ["seed", "learning_rate", "max_length", "folder", "lr_scheduler_type"], arguments, DataArguments()
    )
    versions = found.pop("framework_metadata")
    assert found == {
        "seed": 42,
        "learning_rate": 1e-4,
        "max_length": 128,
        "folder": "data",
        "lr_scheduler_type": "linear",
    }
    assert versions == {
        "python_version": platform.python_version(),
        "trainwright_version": __version__,
        "torch_version": version("torch"),
    }
    recipe = with_metadata(recipe_of(), {**found, "framework_metadata": versions})
    assert read_recipe(write_recipe(recipe)) == recipe


def test_what_is_missing_is_null_and_said() -> None:
    with pytest.warns(TrainwrightWarning, match=r"no argument 'sead' \(did you mean 'seed'\?\); it is written as null"):
        assert metadata_from(["sead"], DataArguments())["sead"] is None


def test_two_values_for_one_name() -> None:
    with pytest.raises(ConfigError, match="seed is there more than once, as 42 and as 7"):
        metadata_from(["seed"], DataArguments(), {"seed": 7})


def test_secrets_stay_out() -> None:
    with pytest.raises(ConfigError, match="hub_token looks like a secret"):
        metadata_from(["hub_token"], {"hub_token": None})
    assert metadata_from(["url"], {"url": "https://me:password@example.org"})["url"] == "https://***@example.org"
    with pytest.raises(ConfigError, match="pass a list of names"):
        metadata_from("seed", {})


def test_overwriting_metadata_is_said() -> None:
    recipe = with_metadata(staged("a", "b"), {"seed": 1})
    assert [stage.metadata for stage in recipe.stages] == [{"seed": 1}, {"seed": 1}]
    assert with_metadata(recipe, {"seed": 1}) == recipe
    with pytest.warns(TrainwrightWarning, match="__metadata__ of stage . is overwritten: it was .*1.*is .*2"):
        assert with_metadata(recipe, {"seed": 2}).stages[0].metadata == {"seed": 2}
