"""Weights and optimizer state come back from disk as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.models import Plain, tiny_bert, tiny_gpt2, tiny_mixture, token_rows
from trainwright import Trainer
from trainwright.checkpoint.optimizer_state import flatten_optimizer, unflatten_optimizer
from trainwright.checkpoint.weights import load_weights, save_weights


class Tied(nn.Module):
    """Two names for one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.outer = nn.Linear(4, 4)
        self.outer.weight = self.inner.weight


@pytest.mark.slow
@pytest.mark.parametrize("make", [Plain, Tied, tiny_bert, tiny_gpt2])
def test_weights_survive(tmp_path: Path, make: Any) -> None:
    model, other = make(), make()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    save_weights(model, tmp_path)
    load_weights(other, tmp_path)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    if make is Tied:
        assert other.inner.weight is other.outer.weight


def test_sharded_weights_are_read(tmp_path: Path) -> None:
    model, other = tiny_bert(), tiny_bert(seed=3)
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    load_weights(other, tmp_path)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


@pytest.mark.slow
def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    save_file({"classifier.weight": torch.zeros(3, 16), "stranger": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="do not fit the model"):
        load_weights(tiny_bert(), tmp_path)
    with pytest.raises(ValueError, match="no weights to load"):
        load_weights(tiny_bert(), tmp_path / "nowhere")


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.optim.LBFGS])
def test_optimizer_state_survives_flattening(optimizer: Any) -> None:
    model = Plain().float()
    names = [name for name, _ in model.named_parameters()]
    first = optimizer(model.parameters(), lr=0.1)
    _backward(model)
    # LBFGS computes the loss again, and keeps lists of tensors.
    first.step(*([lambda: _backward(model)] if optimizer is torch.optim.LBFGS else []))
    tensors, values = flatten_optimizer(first.state_dict(), names)
    assert all(name.split(".", 1)[1].rsplit(".", 1)[0] in names for name in tensors)
    second = optimizer(model.parameters(), lr=0.9)
    second.load_state_dict(unflatten_optimizer(tensors, json.loads(json.dumps(values)), names))
    for a, b in zip(first.state.values(), second.state.values(), strict=True):
        assert all(_same(a[key], b[key]) for key in a)
    assert second.param_groups[0]["lr"] == 0.1


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return len(one) == len(other) and all(_same(*pair) for pair in zip(one, other, strict=True))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_state_that_cannot_be_stored_is_refused() -> None:
    """In words, rather than lost on resume."""
    with pytest.raises(ValueError, match="cannot hold"):
        flatten_optimizer({"state": {0: {"odd": object()}}, "param_groups": []}, ["weight"])


def test_state_for_parameters_that_are_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="does not train"):
        unflatten_optimizer({"state.gone.exp_avg": torch.zeros(1)}, {"state": {}, "param_groups": []}, ["here"])


def _backward(model: Plain) -> torch.Tensor:
    loss = model.logits(torch.ones(2, 6)).square().sum()
    loss.backward()
    return loss


@pytest.mark.parametrize("make", [tiny_gpt2, tiny_mixture], ids=["tied", "mixture of experts"])
def test_a_background_checkpoint_is_what_save_pretrained_writes(make: Any, make_args: Any, tmp_path: Path) -> None:
    """File for file and name for name, though it is written from copies, by our own lines; and it loads back."""
    trainer = Trainer(
        make(), make_args(max_steps=2, save_strategy="steps", learning_rate=1e-2), train_dataset=token_rows(8)
    )
    trainer.train()
    folder, theirs = tmp_path / "run" / "checkpoint-2", tmp_path / "theirs"
    model: Any = trainer.model
    model.save_pretrained(theirs)
    assert {path.name for path in theirs.iterdir()} <= {path.name for path in folder.iterdir()}
    for name in ("config.json", "generation_config.json"):
        assert json.loads((folder / name).read_text()) == json.loads((theirs / name).read_text())
    ours, expected = load_file(folder / "model.safetensors"), load_file(theirs / "model.safetensors")
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in expected.items())
    fresh = make(seed=7)
    load_weights(fresh, folder)
    opened = type(fresh).from_pretrained(folder)
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], tensor), name
        assert torch.equal(opened.state_dict()[name], tensor), name
