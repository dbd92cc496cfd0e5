"""What a scheme means, in all the ways to write it; what is wrong is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from trainwright.config.warnings import TrainwrightWarning
from trainwright.recipes.building import build_modifiers
from trainwright.recipes.language.reading import read_recipe
from trainwright.recipes.quantization.choosing import choose_layers
from trainwright.recipes.quantization.modifier import QuantizationModifier
from trainwright.recipes.quantization.schemes import DEFAULT, Rule, Scheme, read_scheme


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.body = nn.Sequential(nn.Conv1d(4, 4, 1), nn.ReLU(), nn.Conv1d(4, 8, 1))
        self.head = nn.Linear(8, 2)
        self.heads = nn.Linear(8, 2)


def chosen(**arguments: Any) -> dict[str, Scheme]:
    modifier = QuantizationModifier(**arguments)
    return choose_layers(Net(), modifier.asked, strict=modifier.strict)


def test_the_default_is_int8_with_symmetric_weights() -> None:
    found = chosen()
    assert list(found) == ["words", "body.0", "body.2", "head", "heads"]
    assert set(found.values()) == {DEFAULT}
    assert DEFAULT.weights == Rule(symmetric=True)
    assert DEFAULT.input_activations == Rule(symmetric=False)
    assert DEFAULT.output_activations is None


@pytest.mark.parametrize(
    ("name", "weights", "inputs"),
    [
        ("deepsparse", (8, True, "tensor", None), (8, False, "tensor", False)),
        ("tensorrt", (8, True, "tensor", None), (8, True, "tensor", False)),
        ("W8A8", (8, True, "channel", None), (8, True, "token", True)),
        ("int8", (8, True, "channel", None), (8, True, "token", True)),
        ("W4A16", (4, True, "group", 128), None),
        ("W4A16_ASYM", (4, False, "group", 128), None),
        ("W4A8", (4, True, "group", 128), (8, True, "token", True)),
        ("FP8", (8, True, "tensor", None), (8, True, "tensor", False)),
        ("FP8_DYNAMIC", (8, True, "channel", None), (8, True, "token", True)),
    ],
)
def test_presets(name: str, weights: tuple[Any, ...], inputs: tuple[Any, ...] | None) -> None:
    found = read_scheme(name)
    assert found.weights is not None
    own = found.weights
    assert (own.num_bits, own.symmetric, own.strategy, own.group_size) == weights
    assert (own.type == "float") == name.startswith("FP8")
    if inputs is None:
        assert found.input_activations is None
    else:
        got = found.input_activations
        assert got is not None
        assert (got.num_bits, got.symmetric, got.strategy, got.dynamic) == inputs


def test_presets_say_what_compressed_tensors_says() -> None:
    presets: Any = pytest.importorskip("compressed_tensors.quantization.quant_scheme").PRESET_SCHEMES
    for name in ("W8A8", "W4A16", "W4A16_ASYM", "W2A16", "W4A8", "W4AFP8", "FP8", "FP8_DYNAMIC"):
        ours = read_scheme(name)
        for role in ("weights", "input_activations"):
            rule, theirs = getattr(ours, role), presets[name].get(role)
            assert (rule is None) == (theirs is None), (name, role)
            if rule is not None:
                fields = ("num_bits", "symmetric", "strategy", "group_size", "type", "dynamic")
                assert {f: getattr(rule, f) for f in fields} == {f: getattr(theirs, f) for f in fields}, (name, role)


def test_a_mapping_fills_in_what_it_does_not_say() -> None:
    found = read_scheme({"weights": {"num_bits": 4}})
    assert found.weights == Rule(num_bits=4, symmetric=False)
    assert found.input_activations == Rule()
    assert read_scheme({"weights": "null", "input_activations": None}) == Scheme()
    kwargs = {"reduce_range": True, "averaging_constant": 0.5}
    reduced = read_scheme({"weights": {"kwargs": kwargs}}).weights
    assert reduced is not None
    assert (reduced.lowest, reduced.highest, reduced.averaging_constant) == (-64, 63, 0.5)


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        ("W8A9", r"W8A9' is no scheme"),
        ("NVFP4", "cannot be trained here"),
        ({"weight": {}}, "there is no 'weight'.*weights"),
        ({"weights": {"bits": 4}}, "there is no 'bits'.*num_bits"),
        ({"weights": {"num_bits": 1}}, "from 2 to 8"),
        ({"weights": {"strategy": "block"}}, "must be one of"),
        ({"weights": {"strategy": "token"}}, "weights have no tokens"),
        ({"weights": {"type": "float", "num_bits": 4}}, "8 bits"),
        ({"input_activations": {"strategy": "group"}}, "activations share a scale"),
        ({"weights": {"kwargs": {"observer": "x"}}}, "reduce_range and averaging_constant"),
        (3, "must be a name"),
    ],
)
def test_what_is_wrong_is_named(scheme: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QuantizationModifier(scheme=scheme)


def test_overrides_and_ignore_go_by_name_pattern_and_type() -> None:
    found = chosen(
        ignore=["Embedding", "re:body[.]2"],
        scheme_overrides={"Conv1d": "tensorrt", "head": "default", "heads": {"weights": None}},
    )
    assert list(found) == ["body.0", "head", "heads"]
    assert found["body.0"] == read_scheme("tensorrt")
    assert found["head"] == DEFAULT
    assert found["heads"].weights is None
    # A name means a layer and all in it, and is stronger than a type.
    assert list(chosen(ignore=["body"])) == ["words", "head", "heads"]
    named = chosen(scheme_overrides={"body.2": "W8A8", "Conv1d": "tensorrt"})
    assert named["body.2"] == read_scheme("W8A8")
    assert named["body.0"] == read_scheme("tensorrt")


def test_names_that_fit_nothing_are_refused_unless_told_not_to() -> None:
    with pytest.raises(ValueError, match=r"ignore: 'haed' is neither.*head"):
        chosen(ignore=["haed"])
    assert len(chosen(ignore=["haed"], strict=False)) == 5
    with pytest.raises(ValueError, match="finds no layer"):
        chosen(ignore=["words", "body", "head", "heads"])
    with pytest.raises(ValueError, match="not whole groups of 3"):
        chosen(ignore=["body"], scheme={"weights": {"group_size": 3}})
    with pytest.raises(ValueError, match="convolutions have no groups"):
        chosen(targets=["body"], scheme={"weights": {"group_size": 2}})


def test_the_older_keys_are_understood() -> None:
    found = chosen(
        submodules=["body", "head"],
        weight_bits=4,
        activation_bits=6,
        quantize_linear_activations=False,
        exclude_module_types=["ReLU"],
        reduce_range=False,
    )
    assert list(found) == ["body.0", "body.2", "head"]
    weights, inputs = Rule(num_bits=4, symmetric=True), Rule(num_bits=6)
    assert found["body.0"] == Scheme(inputs, weights, inputs)
    assert found["head"] == Scheme(inputs, weights, None)
    assert "words" not in chosen(quantize_embeddings=False)
    assert chosen(tensorrt=True)["head"].input_activations == Rule(symmetric=True)
    with pytest.warns(TrainwrightWarning, match="exclude_batchnorm"):
        QuantizationModifier(exclude_batchnorm=False)
    with pytest.warns(TrainwrightWarning, match="post_oneshot_calibration"):
        QuantizationModifier(post_oneshot_calibration=True)
    with pytest.warns(TrainwrightWarning, match="custom_quantizable_module_types"):
        QuantizationModifier(custom_quantizable_module_types=["SiLU"])
    with pytest.warns(TrainwrightWarning, match="quantization does not end"):
        assert QuantizationModifier(end_epoch=3).end_epoch == -1
    with pytest.raises(ValueError, match="belongs to the older way"):
        QuantizationModifier(scheme="W8A8", weight_bits=4)


def test_the_newest_keys_are_understood() -> None:
    groups = {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "strategy": "channel"}},
        "W8A8": ["Conv1d"],
    }
    found = chosen(config_groups=groups)
    assert list(found) == ["body.0", "body.2", "head", "heads"]
    assert found["head"] == Scheme(weights=Rule(num_bits=4, symmetric=True, strategy="channel"))
    assert found["body.0"] == read_scheme("W8A8")
    assert list(chosen(targets="Linear", scheme="W8A8")) == ["head", "heads"]
    with pytest.raises(ValueError, match="kv_cache_scheme"):
        QuantizationModifier(kv_cache_scheme={"num_bits": 8})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start_epoch": 2, "disable_quantization_observer_epoch": 1}, "comes before start_epoch"),
        ({"start_epoch": 2, "freeze_bn_stats_epoch": 1}, "comes before start_epoch"),
        ({"model_fuse_fn_name": "fuse_module"}, "not called by name"),
        ({"model_fuse_fn_name": "no_fuse", "model_fuse_fn_kwargs": {"a": 1}}, "leave them out"),
        ({"num_calibration_steps": 0}, "at least 1"),
    ],
)
def test_arguments_that_cannot_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QuantizationModifier(**arguments)


def test_a_recipe_builds_it_in_both_spellings() -> None:
    recipe = """
quantization_modifiers:
  - !QuantizationModifier
      start_epoch: 1.5
      scheme: {input_activations: null, weights: {num_bits: 2, symmetric: true, strategy: channel}}
      ignore: [head]
      disable_quantization_observer_epoch: 2.5
      model_fuse_fn_name: conv_bn_relus
  - !QuantizationModifier {start_epoch: 2.0, weight_bits: 4, submodules: [body]}
"""
    first, second = build_modifiers(read_recipe(recipe))
    assert isinstance(first, QuantizationModifier)
    assert isinstance(second, QuantizationModifier)
    assert (first.final_epoch, second.final_epoch) == (2.5, 2.0)
    assert second.asked.targets == ["body"]
