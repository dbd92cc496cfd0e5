"""``trainer.summary()`` and ``trainer.lr_find()``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from tests.looking.test_show_batch import trainer_of
from tests.models import Plain, classification_rows, tiny_llama, token_rows
from trainwright.looking.found_rates import LearningRates
from trainwright.looking.rates import noise_of, suggested


def test_operations_are_those_of_a_step(tmp_path: Path) -> None:
    """A matrix product of m x k x n is 2mkn; backwards twice as many, without those for inputs that need none."""
    trainer = trainer_of(tmp_path, Plain(), classification_rows(16), gradient_accumulation_steps=3)
    found = trainer.summary()
    forward = 2 * (6 * 8 + 8 * 3)
    assert found.flops_per_sample == forward + forward + 2 * 8 * 3
    assert found.flops_per_step == found.flops_per_sample * 4 * 3
    assert (found.parameters, found.trained, found.weights) == (83, 83, 332)


def test_frozen_layers_are_counted_apart_and_a_step_has_a_size(tmp_path: Path) -> None:
    model = tiny_llama()
    model.lm_head.weight.requires_grad_(False)
    found = trainer_of(tmp_path, model, token_rows()).summary(depth=1)
    assert found.parameters - found.trained == 32 * 16
    assert [layer.name for layer in found.layers if layer.depth == 0] == ["model", "lm_head"]
    assert found.memory["activations"] > 0
    assert found.flops_per_sample
    assert "LlamaForCausalLM" in str(found)
    assert "LlamaModel" in found._repr_html_()
    json.dumps(found.as_dict())


class LooksAtNumbers(Plain):
    def forward(self, x: Any, labels: Any = None, **kwargs: Any) -> Any:
        return super().forward(x * 2 if x.sum() > 0 else x, labels)


def test_a_model_that_looks_at_its_numbers_has_a_summary_too(tmp_path: Path) -> None:
    found = trainer_of(tmp_path, LooksAtNumbers(), classification_rows(8)).summary()
    assert found.parameters == 83
    assert found.flops_per_step is None
    assert "were not counted" in str(found)


def learnable(count: int = 256) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 6, generator=generator)
    return [{"x": row, "labels": (row.sum() > 0).long()} for row in x]


def test_a_rate_is_suggested_at_which_the_loss_falls(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, Plain(classes=2), learnable(), per_device_train_batch_size=16)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    mode = trainer.model.training
    found = trainer.lr_find()
    assert found.suggestion is not None
    assert 1e-3 < found.suggestion < 0.5
    assert f"Suggestion: learning_rate={found.suggestion:g}" in str(found)
    assert found.picture.startswith("<svg")
    assert "data:image/svg+xml" in found._repr_html_()
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
    assert trainer.model.training == mode
    assert trainer.optimizer is None
    assert not any(tmp_path.glob("*.json*"))


class Explodes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor, labels: Any = None) -> Any:
        return {"loss": F.mse_loss(x @ self.weight.exp(), x.sum(-1))}


def test_it_stops_where_the_loss_explodes(tmp_path: Path) -> None:
    found = trainer_of(tmp_path, Explodes(), learnable(), optim="sgd").lr_find(greatest=1e4)
    assert found.has_diverged
    assert len(found.rates) < 100
    assert "greater rates were not tried" in str(found)
    json.loads(json.dumps(found.as_dict(), allow_nan=False))


@pytest.mark.parametrize(
    ("options", "words"),
    [({"steps": 5}, "at least 20"), ({"least": 1.0, "greatest": 0.1}, "0 < least < greatest")],
)
def test_senseless_ranges_are_refused(options: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        trainer_of(tmp_path, Plain(), classification_rows(8)).lr_find(**options)


def test_what_cannot_be_copied_is_refused(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, Plain(), classification_rows(8))
    model: Any = trainer.model
    model.is_quantized = True
    with pytest.raises(ValueError, match="Plain is quantized, which cannot be copied"):
        trainer.lr_find()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), max_size=60))
def test_whatever_the_losses_a_suggestion_is_one_of_the_rates_that_were_tried(losses: list[float]) -> None:
    rates = np.geomspace(1e-6, 1, max(len(losses), 1))[: len(losses)]
    found = suggested(rates, np.asarray(losses))
    assert found is None or rates[0] * 0.9 <= found <= rates[-1] * 1.1
    str(LearningRates(list(rates), losses, losses, found, False))


def found_in(losses: np.ndarray) -> float | None:
    weights = 0.1 * 0.9 ** np.arange(len(losses))
    smoothed = np.array([losses[i::-1] @ weights[: i + 1] / weights[: i + 1].sum() for i in range(len(losses))])
    least = max(int(np.argmin(smoothed)) + 1, 10)
    return suggested(np.geomspace(1e-7, 1, len(losses)), smoothed, noise_of(losses[:least].tolist()))


def test_a_loss_that_only_scatters_suggests_nothing_and_one_that_falls_does() -> None:
    generator = np.random.default_rng(0)
    flat = [0.69 + 0.05 * generator.standard_normal(100) for _ in range(100)]
    assert sum(found_in(losses) is not None for losses in flat) <= 5
    assert sum(found_in(losses.round(1)) is not None for losses in flat) <= 5
    fall = 0.5 / (1 + (1e-3 / np.geomspace(1e-7, 1, 100)) ** 1.5)
    assert all(found_in(losses * 2 - fall) is not None for losses in flat)
