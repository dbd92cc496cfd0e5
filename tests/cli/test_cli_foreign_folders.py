"""``recipe apply`` and ``export`` on folders from elsewhere, and with options that do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.test_cli_recipe_apply import DROP, PRUNE, QUANTIZE, saved_bert, zeros
from tests.models import tiny_gpt2
from tests.recipes.export.test_export_command import call

SECOND_ORDER = "pruning_modifiers:\n  - !OBSPruningModifier\n      "
SECOND_ORDER += "{params: __ALL_PRUNABLE__, init_sparsity: 0.0, final_sparsity: 0.5, start_epoch: 0, end_epoch: 1}\n"


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    (tmp_path / "prune.yaml").write_text(PRUNE)
    (tmp_path / "quantize.yaml").write_text(QUANTIZE)
    (tmp_path / "second.yaml").write_text(SECOND_ORDER)
    (tmp_path / "code.py").write_text("number = 3\ndef text(): return 'no model'\n")
    return saved_bert(tmp_path / "bert")


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_folder_with_pickled_weights(bert: Path, tmp_path: Path, pieces: int) -> None:
    """All that SparseML saved is such a folder."""
    stored = load_file(bert / "model.safetensors")
    (bert / "model.safetensors").unlink()
    names = sorted(stored)
    if pieces == 1:
        torch.save(stored, bert / "pytorch_model.bin")
    else:
        files = {name: f"pytorch_model-{index % 2}.bin" for index, name in enumerate(names)}
        for file in set(files.values()):
            torch.save({name: stored[name] for name in names if files[name] == file}, bert / file)
        (bert / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
    code, said = call("recipe", "apply", tmp_path / "prune.yaml", bert, "--output", tmp_path / "sparse")
    assert code == 0, said
    assert zeros(tmp_path / "sparse")["bert.encoder.layer.0.output.dense.weight"] == 0.5
    code, said = call("export", bert, "--to", "safetensors", "--output", tmp_path / "plain")
    assert code == 0, said
    found = load_file(tmp_path / "plain" / "model.safetensors")
    assert all(torch.equal(found[name], stored[name]) for name in found)


def test_pickled_weights_that_are_not_all_there(bert: Path, tmp_path: Path) -> None:
    stored = load_file(bert / "model.safetensors")
    (bert / "model.safetensors").unlink()
    del stored["classifier.weight"]
    torch.save(stored, bert / "pytorch_model.bin")
    code, said = call("export", bert, "--to", "safetensors", "--output", tmp_path / "plain")
    assert code == 2
    assert "no weights for classifier.weight" in said


def test_what_belongs_to_a_language_model_goes_along(tmp_path: Path) -> None:
    model = tiny_gpt2()
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(tmp_path / "gpt")
    (tmp_path / "gpt" / "chat_template.jinja").write_text("{{ messages }}")
    assert call("export", tmp_path / "gpt", "--to", "safetensors", "--output", tmp_path / "plain")[0] == 0
    assert (tmp_path / "plain" / "chat_template.jinja").is_file()
    assert json.loads((tmp_path / "plain" / "generation_config.json").read_text())["max_new_tokens"] == 7


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--output", "prune.yaml"], "is there already"),
        (["--output", "prune.yaml/below"], "cannot be made"),
        (["--output", "new", "--model", "code.py:text"], "should return the model"),
        (["--output", "new", "--model", "code.py:number"], "should be a function"),
    ],
)
def test_mistakes_of_apply(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = call("recipe", "apply", "prune.yaml", bert, *options)
    assert code == 2, said
    assert says in said
    assert not (tmp_path / "new").exists()


def test_data_that_is_none(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = call("recipe", "apply", "quantize.yaml", bert, "--output", "new", "--data", "code.py:number")
    assert code == 2, said
    assert "should be a function" in said
    code, said = call("recipe", "apply", "second.yaml", bert, "--output", "new")
    assert code == 2
    assert "--data my_file.py:function" in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--to", "safetensors", "--output", "new", "--sample", "2x8"], "no meaning with --to safetensors"),
        (["--to", "torch-2:4", "--output", "new"], "no meaning with --to torch-2:4"),
        (["--to", "torch-2:4", "--scheme", "W8A8"], "no meaning with --to torch-2:4"),
        (["--to", "safetensors", "--output", "prune.yaml"], "is there already"),
        (["--to", "safetensors", "--output", "new", "--model", "code.py:text"], "should return the model"),
        (["--to", "onnx", "--output", "new", "--sample", "code.py:number"], "should be a function"),
        (["--to", "onnx", "--output", "new", "--sample", "2x8"], "does not run with these inputs"),
        (["--to", "compressed-tensors", "--output", "new"], "was not trained with"),
    ],
)
def test_mistakes_of_export(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = call("export", bert, *options)
    assert code in (1, 2)
    assert says in said
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_graph_is_not_told_of_configurations(bert: Path, tmp_path: Path) -> None:
    """There is none beside it."""
    (tmp_path / "drop.yaml").write_text(DROP)
    call("recipe", "apply", tmp_path / "drop.yaml", bert, "--output", tmp_path / "shorter")
    code, said = call("export", tmp_path / "shorter", "--to", "onnx", "--output", tmp_path / "graph")
    assert code == 0, said
    assert "from_pretrained" not in said
