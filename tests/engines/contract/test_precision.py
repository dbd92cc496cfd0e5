"""What every engine does alike: mixed precision, and activations computed again."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.engines.contract.engines import OTHERS, Dense, close, feature, rows, same_weights, train
from tests.engines.contract.zoo import MODELS
from trainwright.engines.graph.capture import capture
from trainwright.engines.graph.recompute import cut


class Stacked(nn.Module):
    """Layers in a list, one of them used twice, with dropout and statistics of batches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.norm, self.drop, self.head = nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 3)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        for layer in (*self.layers, self.layers[0]):
            x = x + self.drop(torch.tanh(layer(x)))
        logits = self.head(self.norm(x))
        return {"logits": logits, "loss": F.cross_entropy(logits, labels)}


def by_hand(model: nn.Module, steps: int) -> list[float]:
    """The losses of a loop with torch's own fp16 autocast and GradScaler."""
    model, data, losses = copy.deepcopy(model), rows(), []
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    for step in range(steps):
        batch = data[4 * step : 4 * step + 4]
        with torch.autocast("cpu", torch.float16):
            loss = model(*(torch.stack([row[name] for row in batch]) for name in ("x", "labels")))["loss"]
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
    return losses


SEQUENTIAL: dict[str, Any] = {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_grad_norm": 0}
SEQUENTIAL |= {"train_sampling_strategy": "sequential", "max_steps": 6}


@feature("bf16=True, fp16=True: losses are those of torch's own autocast within its rounding; weights stay float32")
@pytest.mark.parametrize("name", ["bert", "cnn"])
def test_mixed_precision(name: str, engine: str, tmp_path: Path) -> None:
    model, data = MODELS[name]()
    options: dict[str, Any] = {"learning_rate": 1e-3, "bf16": True}
    expected = train(tmp_path / "torch", "torch", model, data, **options)
    found = train(tmp_path / "other", engine, model, data, **options)
    full = train(tmp_path / "full", engine, model, data, learning_rate=1e-3)
    assert close(found.logged("loss"), expected.logged("loss"), 1e-2)
    assert close(found.logged("grad_norm"), expected.logged("grad_norm"), 5e-2)
    assert found.logged("loss") != full.logged("loss")
    assert {weight.dtype for weight in found.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("engine", OTHERS, indirect=True)
def test_fp16_is_torchs_own_with_its_scaler(engine: str, tmp_path: Path) -> None:
    found = train(tmp_path, engine, Dense(), fp16=True, **SEQUENTIAL)
    assert close(found.logged("loss"), by_hand(Dense(), 6), 2e-3)
    assert found.trainer._setup.engine.precision.scaler.get_scale() == 65536.0


class Steep(Dense):
    """Gradients that do not fit into float16 times the scaler's first scale."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        outputs = super().forward(x, labels)
        return outputs if labels is None else {**outputs, "loss": outputs["loss"] * 50}


@pytest.mark.parametrize("engine", OTHERS, indirect=True)
def test_fp16_that_overflows_takes_smaller_scales_until_it_does_not(engine: str, tmp_path: Path) -> None:
    options = {**SEQUENTIAL, "learning_rate": 1e-4, "max_steps": 8, "fp16": True, "save_strategy": "steps"}
    options |= {"save_steps": 3}
    found = train(tmp_path / "whole", engine, Steep(), **options)
    scaler = found.trainer._setup.engine.precision.scaler
    assert scaler.get_scale() < 65536.0
    assert not torch.equal(found.weights()["first.weight"], Steep().first.weight)
    assert all(torch.isfinite(weight).all() for weight in found.model.parameters())
    again = train(tmp_path / "whole", engine, Steep(), resume=str(tmp_path / "whole/checkpoint-3"), **options)
    same_weights(again.weights(), found.weights(), 0.0)
    assert again.trainer._setup.engine.precision.scaler.state_dict() == scaler.state_dict()


@feature("gradient_checkpointing: what crosses from layer to layer is kept, the rest is computed again")
@pytest.mark.parametrize("name", ["gpt2", "llama", "stacked"])
def test_computing_again_changes_nothing(name: str, engine: str, tmp_path: Path) -> None:
    model, data = (Stacked(), rows()) if name == "stacked" else MODELS[name]()
    if engine == "torch" and name == "stacked":
        pytest.skip("with torch a model says itself what is computed again")
    options: dict[str, Any] = {"learning_rate": 1e-3, "gradient_accumulation_steps": 2}
    expected = train(tmp_path / "kept", engine, model, data, **options)
    found = train(tmp_path / "again", engine, model, data, gradient_checkpointing=True, **options)
    assert close(found.logged("loss"), expected.logged("loss"), 1e-5)
    assert close(found.logged("grad_norm"), expected.logged("grad_norm"), 1e-4)
    same_weights(found.weights(), expected.weights(), 1e-4)


@pytest.mark.parametrize("engine", OTHERS, indirect=True)
def test_computing_again_in_half_precision(engine: str, tmp_path: Path) -> None:
    model, data = MODELS["gpt2"]()
    options: dict[str, Any] = {"learning_rate": 1e-3, "bf16": True, "max_steps": 3}
    expected = train(tmp_path / "kept", engine, model, data, **options)
    found = train(tmp_path / "again", engine, model, data, gradient_checkpointing=True, **options)
    assert close(found.logged("loss"), expected.logged("loss"), 5e-3)


class WithConstant(Dense):
    """A tensor that is made in the forward pass, and a number that it counts up."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        self.calls += 1
        return super().forward(x * torch.tensor([1.0, 2.0, 3.0, 1.0, 2.0, 3.0]), labels)


@pytest.mark.parametrize("engine", OTHERS, indirect=True)
def test_constants_of_the_forward_pass(engine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = train(tmp_path / "torch", "torch", WithConstant())
    found = train(tmp_path / "other", engine, WithConstant())
    assert close(found.logged("loss"), expected.logged("loss"))
    assert "The forward pass changes calls, which is no tensor" in caplog.text


@pytest.mark.parametrize("engine", OTHERS, indirect=True)
def test_a_model_without_a_list_of_layers_cannot_be_cut(engine: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"this model has no such list: set gradient_checkpointing=False"):
        train(tmp_path, engine, Dense(), gradient_checkpointing=True)


def test_only_what_crosses_from_layer_to_layer_is_kept() -> None:
    model, data = MODELS["llama"]()
    config: Any = model.config
    batch = {name: torch.stack([row[name] for row in data[:2]]) for name in data[0]}
    pieces = cut(capture(model.train(), lambda model, given: model(**given)["loss"], batch))
    assert len(pieces) == 1 + config.num_hidden_layers
    hidden = [[tuple(node.meta["val"].shape) for node in piece.differentiable] for piece in pieces[:-1]]
    # Of each layer one array, the hidden states; positions are the first's.
    assert {shapes[-1] for shapes in hidden} == {(*batch["input_ids"].shape, config.hidden_size)}
    assert all(len(shapes) == 1 for shapes in hidden[1:])
    # Layers are one computation, compiled once.
    assert len({piece.key() for piece in pieces[1:-1]}) <= 1
