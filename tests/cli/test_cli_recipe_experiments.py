"""``recipe:`` and ``teacher:`` in an experiment, through ``trainwright train`` and ``evaluate``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from tests.cli.test_cli_experiments import EXPERIMENT, call, place

__all__ = ["place"]

RECIPE = """
epochs: 4
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0, end_epoch: eval(epochs)}
pruning_modifiers:
  - !MagnitudePruningModifier
      {params: __ALL_PRUNABLE__, init_sparsity: 0.1, final_sparsity: 0.5, start_epoch: 0, end_epoch: eval(epochs / 2),
       update_frequency: 0.5}
"""
DISTIL = "distillation_modifiers:\n  - !DistillationModifier {hardness: 0.5}\n"


def zeros(folder: Path) -> list[float]:
    weights = [tensor for tensor in load_file(folder / "model.safetensors").values() if tensor.ndim > 1]
    return [float((tensor == 0).float().mean()) for tensor in weights]


@pytest.mark.slow
def test_a_recipe_beside_the_experiment(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    (place / "below").mkdir()
    (place / "below" / "r.yaml").write_text(RECIPE)
    (place / "e.yaml").write_text(
        EXPERIMENT + "recipe: below/r.yaml\nrecipe_args: {epochs: 2}\nmetadata_args: [seed]\n"
    )
    done = call("train", "e.yaml")
    assert done.exit_code == 0, done.output
    assert "The recipe trains for 2 epochs: num_train_epochs=3 does not act." in caplog.text
    assert all(abs(share - 0.5) < 0.05 for share in zeros(place / "runs/e"))
    for name in ("recipe.yaml", "recipe.svg"):
        assert (place / "runs/e" / name).is_file()
    assert "seed: 7" in (place / "runs/e/recipe.yaml").read_text()
    stored = yaml.safe_load((place / "runs/e/experiment.yaml").read_text())
    assert stored["recipe"] == str(place / "below" / "r.yaml")
    again = call("train", "e.yaml")
    assert again.exit_code == 0, again.output
    assert call("evaluate", "runs/e").exit_code == 0


@pytest.mark.slow
def test_a_recipe_in_the_experiment_and_a_teacher(place: Path) -> None:
    assert call("train", "e.yaml", "name=dense").exit_code == 0
    inline = "recipe:\n  distillation_modifiers:\n    DistillationModifier: {hardness: 0.5, end: 2}\n"
    (place / "e.yaml").write_text(EXPERIMENT + inline + "distill_teacher: runs/dense\n")
    done = call("train", "e.yaml")
    assert done.exit_code == 0, done.output
    logs = [json.loads(line) for line in (place / "runs/e/metrics.jsonl").read_text().splitlines()]
    assert logs[-1]["epoch"] == 2


def test_mistakes_are_found_before_any_work(place: Path) -> None:
    (place / "r.yaml").write_text(RECIPE.replace("final_sparsity", "final_sparsty"))
    (place / "e.yaml").write_text(EXPERIMENT + "recipe: r.yaml\n")
    done = call("train", "e.yaml")
    assert done.exit_code == 2, done.output
    assert "did you mean 'final_sparsity'" in done.output
    (place / "r.yaml").write_text(RECIPE + DISTIL)
    done = call("train", "e.yaml")
    assert done.exit_code == 2
    assert "needs a teacher" in done.output
    done = call("train", "e.yaml", "teacher=self", "distill_teacher=self")
    assert done.exit_code == 2
    assert "keep one" in done.output
    done = call("train", "e.yaml", "recipe=nowhere.yaml")
    assert done.exit_code == 2
    assert "nowhere.yaml" in done.output
