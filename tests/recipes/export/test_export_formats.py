"""Exported models, read back by those who read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.recipes.pruning.runs import Chain, Training, pictures_batch
from trainwright.core.modifier import Site
from trainwright.recipes.export.exporting import MASKS, SHAPES, export_model
from trainwright.recipes.export.semi_structured import is_two_of_four, to_semi_structured
from trainwright.recipes.pruning.cutting import fit_to_shapes
from trainwright.recipes.pruning.magnitude import MagnitudePruningModifier
from trainwright.recipes.pruning.structured import StructuredPruningModifier
from trainwright.recipes.pruning.thinning import LayerThinningModifier
from trainwright.recipes.quantization.modifier import QuantizationModifier

PICTURES = pictures_batch(50)[0]


def bert(**changes: Any) -> Any:
    import transformers

    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    config = transformers.BertConfig(vocab_size=50, max_position_embeddings=32, **{**sizes, **changes})
    torch.manual_seed(0)
    return transformers.BertForTokenClassification(config).eval()


def tokens(rows: int = 4, length: int = 10) -> dict[str, torch.Tensor]:
    found = torch.randint(0, 50, (rows, length), generator=torch.Generator().manual_seed(rows))
    return {"input_ids": found, "attention_mask": torch.ones_like(found)}


def quantized(model: nn.Module, scheme: Any, batch: Any, **options: Any) -> QuantizationModifier:
    modifier = QuantizationModifier(scheme=scheme, **options)
    modifier.calibrate(model, [batch])
    return modifier


@torch.no_grad()
def logits(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(**inputs).logits


# ---- plain


def test_plain_weights_have_exact_zeros_masks_and_the_recipe(tmp_path: Path) -> None:
    pruning = MagnitudePruningModifier(init_sparsity=0.5, final_sparsity=0.5, start_epoch=0, end_epoch=1)
    training = Training([pruning, QuantizationModifier(start_epoch=1)], build=Chain, batches=pictures_batch).run(8)
    with torch.no_grad():
        training.model.get_parameter("head.bias").fill_(-0.0)
    before = {name: tensor.clone() for name, tensor in training.model.state_dict().items()}
    done = export_model(training.model, tmp_path, modifiers=[pruning], recipe="version: 1\n")
    tensors = load_file(done.model)
    Chain().load_state_dict(tensors)
    for name, mask in pruning.masks.items():
        assert int((tensors[name] == 0).sum()) == int((~mask).sum())
    assert not any(bool(torch.signbit(t[t == 0]).any()) for n, t in tensors.items() if n.endswith(("weight", "bias")))
    masks = load_file(tmp_path / MASKS)
    assert all(torch.equal(masks[name], mask) for name, mask in pruning.masks.items())
    assert (tmp_path / "recipe.yaml").read_text() == "version: 1\n"
    assert "zeros take as much room" in " ".join(done.notes)
    # The model that was exported is as it was.
    assert all(torch.equal(before[name], tensor) for name, tensor in training.model.state_dict().items())


def test_a_thinned_model_is_a_smaller_file_that_loads(tmp_path: Path) -> None:
    gradual: dict[str, Any] = {"init_sparsity": 0.2, "final_sparsity": 0.5, "start_epoch": 0, "end_epoch": 1}
    structured = StructuredPruningModifier(**gradual, params=["conv1.weight", "hidden.weight"])
    thinning = LayerThinningModifier(start_epoch=1.25)
    training = Training([structured, thinning], build=Chain, batches=pictures_batch).run(8)
    plain = export_model(Chain(), tmp_path / "whole")
    done = export_model(training.model, tmp_path / "thin", modifiers=[structured, thinning])
    assert done.size < plain.size
    again = Chain()
    fit_to_shapes(again, json.loads((tmp_path / "thin" / SHAPES).read_text()))
    again.load_state_dict(load_file(done.model))
    assert torch.equal(again.eval()(PICTURES), training.model.eval()(PICTURES))


def test_a_configuration_that_can_say_so_has_the_smaller_size(tmp_path: Path) -> None:
    import transformers

    model = bert()
    layer = "bert.encoder.layer.0"
    with torch.no_grad():
        for name in ("weight", "bias"):
            model.get_parameter(f"{layer}.intermediate.dense.{name}")[:24] = 0
    thinning = LayerThinningModifier(
        start_epoch=0,
        param_group_dependency_map={
            f"{layer}.intermediate.dense.weight": [f"{layer}.output.dense.weight"],
        },
    )
    expected = logits(model, tokens())
    thinning.prepare_model(model)
    thinning.advance(Site(model, None, 1.0), 0.0)
    export_model(model, tmp_path, modifiers=[thinning])
    again = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path)
    assert again.config.intermediate_size == 40
    torch.testing.assert_close(logits(again.eval(), tokens()), expected)
    assert not (tmp_path / SHAPES).exists()


# ---- compressed-tensors


GROUPS = {"num_bits": 4, "strategy": "group", "group_size": 32}


@pytest.mark.parametrize(
    ("scheme", "form"),
    [
        ("default", "int-quantized"),
        ("W8A8", "int-quantized"),
        ({"input_activations": None, "weights": {**GROUPS, "symmetric": True}}, "pack-quantized"),
        ({"input_activations": None, "weights": {**GROUPS, "symmetric": False}}, "pack-quantized"),
        ("FP8", "float-quantized"),
        ("FP8_DYNAMIC", "float-quantized"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")  # transformers says that it is heard
def test_compressed_tensors_load_to_the_same_outputs(
    scheme: Any, form: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    import transformers

    model = bert().to(dtype)
    modifier = quantized(model, scheme, tokens(), ignore=["classifier"])
    expected = logits(model, tokens(3, 7))
    done = export_model(model, tmp_path, to="compressed-tensors", modifiers=[modifier])
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert config["format"] == form
    assert config["quant_method"] == "compressed-tensors"
    assert not any("sparsity" in key for key in config)
    assert config["ignore"] == ["classifier"]
    # What the export itself says of packed zero points.
    unpacked = any("CompressedTensorsConfig(dequantize=True)" in note for note in done.notes)
    assert unpacked == (isinstance(scheme, dict) and not scheme["weights"]["symmetric"])
    reading = {"quantization_config": transformers.CompressedTensorsConfig(dequantize=True)} if unpacked else {}
    again = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path, dtype=dtype, **reading).eval()
    found = logits(again, tokens(3, 7))
    # In float32 the same to the last bits; bfloat16 holds scales of activations with 8 bits.
    error = (found - expected).float().square().mean().sqrt() / expected.float().square().mean().sqrt()
    assert float(error) < (1e-3 if dtype == torch.float32 else 3e-2)
    assert done.size < sum(p.nbytes for p in model.parameters())
    name = "bert.encoder.layer.0.output.dense"
    stored = load_file(done.model)
    assert f"{name}.weight_scale" in stored
    layer = model.get_submodule(name)
    ours = layer.weight_fake_quantizer.grid(layer.weight)[0]
    assert torch.equal(stored[f"{name}.weight_scale"].float().flatten(), ours.flatten())


def test_zeros_survive_compression(tmp_path: Path) -> None:
    model: Any = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    pruning = MagnitudePruningModifier(init_sparsity=0.9, final_sparsity=0.9, start_epoch=0, end_epoch=1)
    pruning.prepare_model(model)
    pruning.advance(Site(model, None, 1.0), 1.0)
    modifier = quantized(model, "W8A8", torch.randn(3, 64))
    done = export_model(model, tmp_path, to="compressed-tensors", modifiers=[pruning, modifier])
    stored = load_file(done.model)["0.weight"]
    assert stored.dtype == torch.int8
    assert not stored[~pruning.masks["0.weight"]].any()


def test_a_model_that_was_not_trained_so_is_rounded_and_told(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv1d(4, 4, 1), nn.Flatten(), nn.Linear(128, 4))
    with pytest.raises(ValueError, match="name a scheme"):
        export_model(model, tmp_path, to="compressed-tensors")
    with pytest.raises(ValueError, match="only data can tell"):
        export_model(model, tmp_path, to="compressed-tensors", scheme="FP8")
    done = export_model(model, tmp_path, to="compressed-tensors", scheme="W4A16")
    assert "not trained for this" in done.notes[0]
    assert "2.weight_packed" in load_file(done.model)
    assert type(model[2]) is nn.Linear
    quantized(model, "default", torch.randn(2, 4, 32))
    with pytest.raises(ValueError, match="scheme of its own"):
        export_model(model, tmp_path, to="compressed-tensors", scheme="W4A16")


def test_layers_without_a_form_are_stored_rounded(tmp_path: Path) -> None:
    model: Any = nn.Sequential(nn.Conv1d(4, 4, 1), nn.Flatten(), nn.Linear(32, 4))
    modifier = quantized(model, {"input_activations": None, "weights": {"num_bits": 4}}, torch.randn(2, 4, 8))
    done = export_model(model, tmp_path, to="compressed-tensors", modifiers=[modifier])
    assert done.notes[0].startswith("0: only linear layers")
    assert len(load_file(done.model)["0.weight"].unique()) <= 16
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert config["config_groups"]["group_0"]["targets"] == ["Linear"]


# ---- onnx


class Shifted(nn.Module):
    """Batch normalization with statistics worth folding."""

    def __init__(self) -> None:
        super().__init__()
        self.chain = Chain()
        for number, norm in enumerate((self.chain.bn1, self.chain.bn2)):
            random = torch.Generator().manual_seed(number)
            for tensor in (norm.running_mean, norm.running_var, norm.weight.data, norm.bias.data):
                assert tensor is not None
                tensor.uniform_(0.5, 1.5, generator=random)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.chain(pictures)


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme",
    [
        None,
        "default",
        "tensorrt",
        "W8A8",
        {"weights": {"num_bits": 8, "strategy": "channel"}, "output_activations": {"num_bits": 8}},
        {"weights": {"num_bits": 4, "symmetric": True, "strategy": "channel"}, "input_activations": {"num_bits": 6}},
        {"weights": {"num_bits": 2, "symmetric": True, "strategy": "channel"}, "input_activations": None},
    ],
    ids=["float", "default", "tensorrt", "W8A8", "outputs", "int4", "int2"],
)
def test_onnx_gives_the_same_in_onnxruntime(scheme: Any, tmp_path: Path) -> None:
    import onnx

    from trainwright.recipes.export.onnx_graph import run_onnx

    torch.manual_seed(0)
    model = Shifted().eval()
    if scheme is not None:
        quantized(model, scheme, PICTURES)
    done = export_model(model, tmp_path, to="onnx", example_inputs=PICTURES[:2])
    # Another batch, of another size.
    other = pictures_batch(3)[0][:5]
    found = run_onnx(done.model, {"pictures": other})[0]
    with torch.no_grad():
        expected = model(other).numpy()
    error = np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2))
    assert error < (1e-5 if scheme is None else 0.05)
    graph = onnx.load(done.model).graph
    kinds = [node.op_type for node in graph.node]
    if scheme is None:
        return
    if isinstance(scheme, dict) and "output_activations" in scheme:
        # What is rounded in between cannot be folded away.
        assert kinds.count("BatchNormalization") == 2
    else:
        assert "BatchNormalization" not in kinds
        assert done.notes[0] == "2 batch normalizations are folded into the convolutions before them"
    stored = {tensor.name: tensor for tensor in graph.initializer}
    weight = stored["chain.hidden.weight_fake_quantizer.codes"]
    bits = 4 if isinstance(scheme, dict) and scheme["weights"]["num_bits"] == 4 else 8
    assert weight.data_type == (onnx.TensorProto.INT4 if bits == 4 else onnx.TensorProto.INT8)
    assert not any(tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) > 1 for tensor in stored.values())


@pytest.mark.slow
def test_onnx_of_a_language_model_takes_any_batch_and_length(tmp_path: Path) -> None:
    from trainwright.recipes.export.onnx_graph import run_onnx

    model = bert()
    groups = {"input_activations": None, "weights": {**GROUPS, "symmetric": False}}
    quantized(model, {"weights": {"num_bits": 8, "symmetric": True}}, tokens(), scheme_overrides={"Embedding": groups})
    done = export_model(model, tmp_path, to="onnx", example_inputs=tokens())
    inputs = tokens(3, 7)
    inputs["attention_mask"][0, 4:] = 0
    found, expected = run_onnx(done.model, inputs)[0], logits(model, inputs).numpy()
    assert np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_onnx_of_other_number_formats(dtype: torch.dtype, tmp_path: Path) -> None:
    model = Shifted().to(dtype).eval()
    quantized(model, "default", PICTURES.to(dtype))
    done = export_model(model, tmp_path, to="onnx", example_inputs=PICTURES.to(dtype))
    assert "float32" in done.notes[0]


def test_onnx_refuses_what_it_has_no_form_for(tmp_path: Path) -> None:
    linear = nn.Sequential(nn.Linear(32, 4))
    quantized(linear, "FP8", torch.randn(2, 32))
    with pytest.raises(ValueError, match="export to compressed-tensors"):
        export_model(linear, tmp_path, to="onnx", example_inputs=torch.randn(2, 32))
    grouped = nn.Sequential(nn.Linear(32, 4))
    rule = {"num_bits": 3, "group_size": 8, "symmetric": True}
    quantized(grouped, {"input_activations": None, "weights": rule}, torch.randn(2, 32))
    with pytest.raises(ValueError, match="groups for 4-bit weights alone"):
        export_model(grouped, tmp_path, to="onnx", example_inputs=torch.randn(2, 32))
    with pytest.raises(ValueError, match="needs example_inputs"):
        export_model(grouped, tmp_path, to="onnx")
    with pytest.raises(ValueError, match=r"to='onxx' must be one of.*onnx"):
        export_model(grouped, tmp_path, to="onxx")


class Moody(nn.Module):
    """Computes something else when it is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.layer(values) * (2 if torch.compiler.is_exporting() else 1)


@pytest.mark.slow
def test_a_graph_that_computes_something_else_is_not_handed_out(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"off by 100.00%"):
        export_model(Moody(), tmp_path, to="onnx", example_inputs=torch.randn(3, 4))


# ---- 2:4


def test_two_of_four_is_for_cuda(tmp_path: Path) -> None:
    model: Any = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 2))
    with pytest.raises(ValueError, match="No linear layer is 2:4 sparse"):
        to_semi_structured(model)
    pruning = MagnitudePruningModifier(
        init_sparsity=0.5, final_sparsity=0.5, start_epoch=0, end_epoch=1, mask_type="2:4", params=["0.weight"]
    )
    pruning.prepare_model(model)
    pruning.advance(Site(model, None, 1.0), 1.0)
    assert is_two_of_four(model[0].weight)
    with pytest.raises(ValueError, match="for CUDA alone"):
        to_semi_structured(model)
