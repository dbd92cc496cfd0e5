"""Recipes as SparseML's users have them, and teachers as its Trainer asks them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models import classification_rows
from trainwright.compat.sparseml import ScheduledModifierManager, Trainer
from trainwright.config.arguments import TrainingArguments
from trainwright.config.warnings import TrainwrightWarning
from trainwright.recipes.language.reading import read_recipe

MakeArgs = Callable[..., TrainingArguments]

ROWS = classification_rows(8)


class AlwaysLoses(nn.Module):
    """Computes a loss whatever it is asked for, so it has to have labels, though they have a default."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.layer(x)
        assert labels is not None
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.parametrize("teacher", ["self", "module"])
def test_a_teacher_whose_forward_needs_labels(make_args: MakeArgs, teacher: str) -> None:
    epochs = "!EpochRangeModifier {start_epoch: 0, end_epoch: 1}"
    recipe = f"modifiers:\n  - !DistillationModifier {{hardness: 1.0}}\n  - {epochs}\n"
    model = AlwaysLoses()
    before = model.layer.weight.clone()
    chosen: Any = "self" if teacher == "self" else AlwaysLoses(seed=5)
    trainer = Trainer(model, None, recipe, teacher=chosen, args=make_args(optim="sgd"), train_dataset=ROWS)
    trainer.train()
    # Of its own answers a model has nothing to learn.
    assert torch.allclose(model.layer.weight, before, atol=1e-6) is (teacher == "self")


WITHOUT = """
import sys
import importlib.util

MISSING = {missing!r}
found = importlib.util.find_spec

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Nowhere())
importlib.util.find_spec = lambda name, package=None: None if name.split(".")[0] in MISSING else found(name, package)
"""


def run_without(missing: list[str], script: str, folder: Path) -> str:
    """What ``script`` prints where these packages cannot be imported."""
    path = folder / "script.py"
    path.write_text(WITHOUT.format(missing=missing) + textwrap.dedent(script))
    done = subprocess.run(
        [sys.executable, str(path)], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_pruning_needs_no_torchao_and_quantization_names_it(tmp_path: Path) -> None:
    script = """
        import torch
        from torch import nn
        from trainwright.compat.sparseml import ScheduledModifierManager
        from trainwright.compat.sparseml.pytorch.sparsification import MagnitudePruningModifier, QuantizationModifier

        prune = MagnitudePruningModifier(0.1, 0.5, 0.0, 1.0, 0.5, params="__ALL_PRUNABLE__")
        model = nn.Linear(10, 10)
        manager = ScheduledModifierManager([prune])
        optimizer = manager.modify(model, torch.optim.SGD(model.parameters(), lr=0.1), steps_per_epoch=2)
        for step in range(2):
            model(torch.ones(1, 10)).sum().backward()
            optimizer.step()
        print(int((model.weight == 0).sum()))
        try:
            ScheduledModifierManager([QuantizationModifier()]).apply(nn.Linear(4, 2))
        except ImportError as error:
            print(error)
        print("torchao" in sys.modules)
    """
    printed = run_without(["torchao"], script, tmp_path).splitlines()
    assert printed == ["50", "Quantization needs the package torchao: pip install 'trainwright[recipes]'.", "False"]


@pytest.mark.full
def test_arguments_of_transformers_without_accelerate(tmp_path: Path) -> None:
    """Their class asks for accelerate when it looks for a device; one that knows its own does not."""
    script = """
        from dataclasses import dataclass

        import torch
        import transformers
        from torch import nn
        from trainwright.compat.sparseml import Trainer

        @dataclass
        class Arguments(transformers.TrainingArguments):
            device = torch.device("cpu")

        rows = [{"x": torch.randn(4), "labels": torch.tensor(i % 2)} for i in range(8)]

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 2)

            def forward(self, x):
                return self.layer(x)

        args = Arguments("runs", num_train_epochs=2, report_to="none", save_strategy="no")
        trainer = Trainer(Net(), None, None, args=args, train_dataset=rows)
        trainer.train()
        print(trainer.state.epoch, "accelerate" in sys.modules)
    """
    # peft is there only with accelerate.
    assert run_without(["accelerate", "peft"], script, tmp_path).splitlines()[-1] == "2.0 False"


def test_sparsity_that_falls() -> None:
    """Weights come back, from zero, and learn again."""
    recipe = """
    pruning_modifiers:
      - !GMPruningModifier
          {params: __ALL_PRUNABLE__, init_sparsity: 0.8, final_sparsity: 0.2, start_epoch: 0.0, end_epoch: 2.0,
           update_frequency: 0.5}
    """
    torch.manual_seed(0)
    model = nn.Linear(10, 10)
    manager = ScheduledModifierManager.from_yaml(recipe)
    optimizer = manager.modify(model, torch.optim.SGD(model.parameters(), lr=0.1), steps_per_epoch=4)
    zeros = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = (model(torch.randn(8, 10)) - 1).square().mean()
        zeros.append(int((model.weight == 0).sum()))
        loss.backward()
        optimizer.step()
    manager.finalize(model)
    assert zeros[0] == 80
    assert zeros == sorted(zeros, reverse=True)
    assert int((model.weight == 0).sum()) == 20


def test_words_of_old_recipes() -> None:
    mfac = "{init_sparsity: 0.3, final_sparsity: 0.9, start_epoch: 1, end_epoch: 2, available_gpus: ['cuda:0']}"
    with pytest.warns(TrainwrightWarning, match="available_gpus: no effect"):
        ScheduledModifierManager.from_yaml(f"modifiers:\n  - !MFACPruningModifier {mfac}\n")
    with pytest.warns(TrainwrightWarning, match="SiLU.*has no effect"):
        ScheduledModifierManager.from_yaml(
            "modifiers:\n  - !QuantizationModifier {submodules: [model], custom_quantizable_module_types: [SiLU]}\n"
        )


@pytest.mark.parametrize("written", ["None", "null", ""])
def test_metadata_of_none(written: str) -> None:
    """As SparseML writes that there is none."""
    plain = read_recipe(f"__metadata__: {written}\nmodifiers:\n  - !EpochRangeModifier {{end_epoch: 1}}\n")
    assert plain.metadata is None
    staged = read_recipe(
        f"a:\n  __metadata__: {written}\n  a_modifiers:\n    - !EpochRangeModifier {{end_epoch: 1}}\n"
        f"b:\n  __metadata__: {written}\n  b_modifiers:\n    - !EpochRangeModifier {{start_epoch: 1, end_epoch: 2}}\n"
    )
    assert [stage.metadata for stage in staged.stages] == [None, None]
