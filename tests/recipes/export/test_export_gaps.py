"""Layers that a recipe dropped are gone from an exported transformers model too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models import tiny_gpt2, tiny_llama, token_rows
from trainwright import Trainer, TrainingArguments
from trainwright.recipes.export.exporting import export_model

RECIPE = """
training_modifiers:
  - !EpochRangeModifier {{start_epoch: 0, end_epoch: 1}}
pruning_modifiers:
  - !LayerPruningModifier {{layers: ["{layer}"], start_epoch: 0.5}}
  - !ConstantPruningModifier {{params: __ALL_PRUNABLE__}}
"""


@pytest.mark.parametrize(
    ("make", "layer"), [(tiny_gpt2, "transformer.h.0"), (tiny_llama, "model.layers.0")], ids=["gpt2", "llama"]
)
def test_from_pretrained_gives_the_shorter_model(make: Any, layer: str, tmp_path: Path) -> None:
    model = make()
    args = TrainingArguments(str(tmp_path / "run"), disable_tqdm=True, use_cpu=True, save_strategy="no")
    trainer = Trainer(model, args, train_dataset=token_rows(8), recipe=RECIPE.format(layer=layer))
    trainer.train()
    done = export_model(model, tmp_path / "out", modifiers=trainer.modifiers, recipe=trainer.recipe)
    assert any("from_pretrained loads the rest" in note for note in done.notes)
    read = type(model).from_pretrained(tmp_path / "out")
    assert read.config.num_hidden_layers == model.config.num_hidden_layers - 1
    ids = torch.stack([row["input_ids"] for row in token_rows(4)])
    torch.testing.assert_close(read.eval()(input_ids=ids).logits, model.eval()(input_ids=ids).logits)
    text = (tmp_path / "out" / "recipe.yaml").read_text()
    assert "LayerPruningModifier" not in text
    assert "ConstantPruningModifier" in text
