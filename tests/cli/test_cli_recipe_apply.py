"""``trainwright recipe apply``: a recipe on saved weights, without training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.test_cli_experiments import call, place
from tests.experiment.tiny import tokenizer_folder
from tests.models import tiny_bert
from trainwright.experiment.exporting import load_trained
from trainwright.recipes.language.reading import read_recipe

__all__ = ["place"]

PRUNE = """
sparsity: 0.5
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 4}
  - !SetLearningRateModifier {learning_rate: 0.1}
pruning_modifiers:
  - !MagnitudePruningModifier
      {params: __ALL_PRUNABLE__, init_sparsity: 0.1, final_sparsity: eval(sparsity), start_epoch: 0, end_epoch: 2}
distillation_modifiers:
  - !DistillationModifier {hardness: 0.5}
"""
QUANTIZE = "quantization_modifiers:\n  - !QuantizationModifier {ignore: [classifier]}\n"
DROP = "pruning_modifiers:\n  - !LayerPruningModifier {layers: [bert.encoder.layer.1], start_epoch: 1}\n"
FILE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x, labels=None):
        logits = self.second(torch.relu(self.first(x)))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}

def batches():
    torch.manual_seed(0)
    for _ in range(4):
        yield {"x": torch.randn(5, 4), "labels": torch.randint(0, 3, (5,))}
"""


def saved_bert(folder: Path) -> Path:
    tokenizer_folder(folder)
    tiny_bert().save_pretrained(folder)
    return folder


def zeros(folder: Path) -> dict[str, float]:
    found = load_file(folder / "model.safetensors")
    return {name: float((tensor == 0).float().mean()) for name, tensor in found.items() if tensor.ndim > 1}


def test_a_model_of_transformers(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(PRUNE)
    source, output = saved_bert(tmp_path / "bert"), tmp_path / "sparse"
    done = call(
        "recipe", "apply", str(tmp_path / "r.yaml"), str(source), "--output", str(output), "--args", "sparsity=0.75"
    )
    assert done.exit_code == 0, done.output
    skipped = next(line for line in done.output.splitlines() if "Skipped, for there is no training" in line)
    assert all(name in skipped for name in ("EpochRange", "SetLearningRate", "Distillation"))
    assert all(abs(share - 0.75) < 0.05 for share in zeros(output).values())
    assert (output / "tokenizer.json").is_file()
    assert read_recipe(output / "recipe.yaml").max_epochs == 4
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(output)
    assert float((model.classifier.weight == 0).float().mean()) == pytest.approx(0.75, abs=0.05)
    assert max(zeros(source).values()) < 0.1


def test_generations_and_a_layer_less(tmp_path: Path) -> None:
    source = saved_bert(tmp_path / "bert")
    for name, recipe in (("a", DROP), ("b", PRUNE)):
        (tmp_path / f"{name}.yaml").write_text(recipe)
        done = call("recipe", "apply", str(tmp_path / f"{name}.yaml"), str(source), "--output", str(tmp_path / name))
        assert done.exit_code == 0, done.output
        source = tmp_path / name
    found = load_trained(tmp_path / "b").model
    assert not list(found.get_submodule("bert.encoder.layer.1").parameters())
    assert [stage.name for stage in read_recipe(tmp_path / "b" / "recipe.yaml").stages] == ["stage_0", "stage_1"]
    exported = call("export", str(tmp_path / "b"), "--to", "safetensors", "--output", str(tmp_path / "out"))
    assert exported.exit_code == 0, exported.output
    assert all(abs(share - 0.5) < 0.05 for share in zeros(tmp_path / "out").values())


def test_a_model_and_batches_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(FILE)
    namespace: dict[str, object] = {}
    exec(FILE, namespace)
    net = namespace["Net"]()  # type: ignore[operator]
    source = tmp_path / "net"
    source.mkdir()
    from safetensors.torch import save_file

    save_file(net.state_dict(), source / "model.safetensors")
    (tmp_path / "r.yaml").write_text(
        PRUNE.replace("MagnitudePruning", "OBSPruning").replace(
            "start_epoch: 0, end_epoch: 2", "num_grads: 4, end_epoch: 2"
        )
        + QUANTIZE.replace("{ignore: [classifier]}", "{}")
    )
    words = ["recipe", "apply", str(tmp_path / "r.yaml"), str(source), "--output", str(tmp_path / "done")]
    assert "--model" in call(*words).output
    words += ["--model", f"{tmp_path / 'net.py'}:Net"]
    done = call(*words, "--data", f"{tmp_path / 'net.py'}:batches")
    assert done.exit_code == 0, done.output
    loaded = load_trained(tmp_path / "done", f"{tmp_path / 'net.py'}:Net").model
    first = loaded.get_submodule("first")
    assert float(first.input_fake_quantizer.high) > 1  # type: ignore[union-attr, arg-type]
    shares = zeros(tmp_path / "done")
    assert 0.4 < sum(shares.values()) / len(shares) < 0.6
    assert torch.isfinite(loaded(torch.randn(2, 4))["logits"]).all()


@pytest.mark.slow
def test_a_run_of_an_experiment_brings_its_data(place: Path) -> None:
    assert call("train", "e.yaml").exit_code == 0
    (place / "r.yaml").write_text(PRUNE + QUANTIZE.replace("{ignore: [classifier]}", "{}"))
    done = call("recipe", "apply", "r.yaml", "runs/e", "--output", "sparse")
    assert done.exit_code == 0, done.output
    assert all(abs(share - 0.5) < 0.05 for share in zeros(place / "sparse").values())
    evaluated = call("evaluate", "sparse")
    assert evaluated.exit_code == 0, evaluated.output


def test_mistakes(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(PRUNE)
    source = saved_bert(tmp_path / "bert")
    words = ["recipe", "apply", str(tmp_path / "r.yaml"), str(source), "--output"]
    for wrong, said in (
        ([str(source)], "choose another --output"),
        ([str(tmp_path / "o"), "--data", "batches"], "write my_file.py:function"),
        ([str(tmp_path / "o"), "--args", "sparsty=1"], "did you mean 'sparsity'"),
    ):
        done = call(*words, *wrong)
        assert (done.exit_code, said in done.output.replace("\n", " ")) == (2, True), done.output
    (tmp_path / "r.yaml").write_text(PRUNE.replace("__ALL_PRUNABLE__", "[nothing.weight]"))
    done = call(*words, str(tmp_path / "o"))
    assert done.exit_code == 2
    assert "nothing.weight" in done.output
    assert not (tmp_path / "o").exists()


def test_without_data_activations_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(QUANTIZE)
    with pytest.warns(UserWarning, match="Activations are not quantized"):
        done = call(
            "recipe",
            "apply",
            str(tmp_path / "r.yaml"),
            str(saved_bert(tmp_path / "b")),
            "--output",
            str(tmp_path / "o"),
        )
    assert done.exit_code == 0, done.output
