"""``trainwright export``: what it finds, writes and says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from tests.recipes.digits import MLP, trainer_for
from trainwright.cli import app as cli_app
from trainwright.cli.app import app

assert cli_app

MODEL = """
from tests.recipes.digits import MLP
import torch

def make():
    return MLP(16)

def pixels():
    return torch.zeros(3, 64)
"""
RECIPE = """
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 2.0}
pruning_modifiers:
  - !MagnitudePruningModifier {params: __ALL_PRUNABLE__, init_sparsity: 0.2, final_sparsity: 0.75,
                               start_epoch: 0.0, end_epoch: 1.0, update_frequency: 0.5}
quantization_modifiers:
  - !QuantizationModifier {start_epoch: 1.0, disable_quantization_observer_epoch: 1.5}
"""


def call(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, str]:
    """A finished run of digits by the recipe: checkpoints and a saved model, and how to build it."""
    folder = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    model = MLP(16)
    trainer = trainer_for(model, folder / "run", 0, 2, recipe=RECIPE, args={"save_strategy": "epoch"})
    trainer.train()
    trainer.save_model(str(folder / "saved"))
    (folder / "net.py").write_text(MODEL)
    return folder, model.eval(), f"{folder / 'net.py'}:make"


def test_a_saved_model_and_a_checkpoint_become_plain_weights(run: Any, tmp_path: Path) -> None:
    folder, model, make = run
    code, said = call("export", folder / "saved", "--to", "safetensors", "--model", make, "--output", tmp_path / "a")
    assert code == 0, said
    assert "Exported to" in said
    tensors = load_file(tmp_path / "a" / "model.safetensors")
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in tensors.items())
    assert float((tensors["layers.3.weight"] == 0).float().mean()) == 0.75
    masks = load_file(tmp_path / "a" / "masks.safetensors")
    assert set(masks) == {"layers.1.weight", "layers.3.weight", "layers.5.weight"}
    assert "QuantizationModifier" in (tmp_path / "a" / "recipe.yaml").read_text()
    newest = sorted((folder / "run").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))[-1]
    code, said = call("export", newest, "--to", "safetensors", "--model", make)
    assert code == 0, said
    assert (newest.parent / "exported" / f"{newest.name}-safetensors" / "model.safetensors").is_file()


def test_compressed_tensors_have_the_trained_grids(run: Any, tmp_path: Path) -> None:
    folder, model, make = run
    code, said = call(
        "export", folder / "saved", "--to", "compressed-tensors", "--model", make, "--output", tmp_path / "c"
    )
    assert code == 0, said
    stored = load_file(tmp_path / "c" / "model.safetensors")
    layer = model.layers[3]
    assert torch.equal(stored["layers.3.weight_scale"].flatten(), layer.weight_fake_quantizer.scale.flatten())
    weight = stored["layers.3.weight"].float() * stored["layers.3.weight_scale"]
    assert torch.equal(weight, layer.rounded_weight())
    assert float((stored["layers.3.weight"] == 0).float().mean()) >= 0.75
    inputs = layer.input_fake_quantizer.grid()
    assert torch.equal(stored["layers.3.input_scale"], inputs[0].reshape(1))


@pytest.mark.slow
def test_onnx_is_checked_with_the_sample(run: Any, tmp_path: Path) -> None:
    from trainwright.recipes.export.onnx_graph import run_onnx

    folder, model, make = run
    words = ("export", folder / "saved", "--to", "onnx", "--model", make)
    code, said = call(*words, "--output", tmp_path / "none")
    assert code == 2
    assert "--sample" in said
    code, said = call(*words, "--output", tmp_path / "o", "--sample", "2x64")
    assert code == 0, said
    values = torch.rand(5, 64)
    with torch.no_grad():
        expected = model(values)
    found = torch.from_numpy(run_onnx(tmp_path / "o" / "model.onnx", {"pixels": values})[0])
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.05)
    sample = make.replace(":make", ":pixels")
    assert call(*words, "--output", tmp_path / "p", "--sample", sample)[0] == 0


@pytest.mark.slow
def test_a_folder_of_transformers_says_itself_how_it_is_built(tmp_path: Path) -> None:
    import transformers

    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=32,
    )
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(config).eval()
    model.save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "tokenizer.json").write_text("{}")
    code, said = call("export", tmp_path / "bert", "--to", "compressed-tensors")
    assert code == 1
    assert "name a scheme" in said
    code, said = call("export", tmp_path / "bert", "--to", "compressed-tensors", "--scheme", "W4A16")
    assert code == 0, said
    assert "Note: the model was not trained for this" in said
    out = tmp_path / "exported" / "bert-compressed-tensors"
    assert (out / "tokenizer.json").is_file()
    again = transformers.AutoModelForMaskedLM.from_pretrained(out).eval()
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        found, plain = again(tokens).logits, model(tokens).logits
    torch.testing.assert_close(found, plain, rtol=0.2, atol=0.2)
    code, said = call("export", tmp_path / "bert", "--to", "onnx")
    assert code == 0, said
    code, said = call("export", tmp_path / "bert", "--to", "onnx")
    assert code == 2
    assert "is there already" in said


@pytest.mark.slow
def test_a_run_of_an_experiment_needs_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "digits.yaml").write_text(
        "name: small\nmodel: cnn\ndata: {train: digits, limit_train: 200}\nrecipe: recipe.yaml\n"
        "training: {use_cpu: true, disable_tqdm: true}\n"
    )
    code, said = call("train", "digits.yaml")
    assert code == 0, said
    code, said = call("export", "runs/small", "--to", "onnx")
    assert code == 0, said
    assert (tmp_path / "runs" / "exported" / "small-onnx" / "model.onnx").is_file()


def test_two_of_four_explains_itself(run: Any, tmp_path: Path) -> None:
    folder, _, make = run
    code, said = call("export", folder / "saved", "--to", "torch-2:4", "--model", make)
    assert code == 1
    assert "mask_type: '2:4'" in said


def test_mistakes(run: Any, tmp_path: Path) -> None:
    folder, _, make = run
    code, said = call("export", folder / "saved", "--to", "safetensors")
    assert code == 2
    assert "--model my_file.py:function" in said
    assert call("export", folder / "nowhere", "--to", "safetensors")[0] == 2
    assert call("export", folder / "saved", "--to", "hf", "--scheme", "W8A8")[0] == 2
    assert call("export", folder / "saved", "--to", "safetensors", "--model", "net")[0] == 2
    code, said = call("export", folder / "saved", "--to", "onnx", "--model", make, "--sample", "2xa")
    assert code == 2
    assert "a shape such as" in said


@pytest.mark.slow
def test_help_does_not_wait_for_torch() -> None:
    code = "import sys; from trainwright.cli import main; sys.argv = ['trainwright', 'export', '--help']\n"
    code += "try:\n    main()\nexcept SystemExit:\n    pass\nassert 'torch' not in sys.modules\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "compressed-tensors" in done.stdout
