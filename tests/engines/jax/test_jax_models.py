"""Whole models: loss, gradients and buffers of one training step, and what they evaluate to, as torch has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainwright.engines.graph.capture import Captured, capture
from trainwright.engines.jax.framework import JaxFramework

pytest.importorskip("jax")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.jax

Model = tuple[nn.Module, dict[str, Tensor]]


def _texts() -> dict[str, Tensor]:
    ids, mask = torch.randint(5, 100, (4, 16)), torch.ones(4, 16, dtype=torch.long)
    mask[0, 10:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids}


def bert() -> Model:
    config = transformers.BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    return transformers.BertForSequenceClassification(config), _texts() | {"labels": torch.tensor([0, 1, 0, 1])}


def gpt2() -> Model:
    config = transformers.GPT2Config(
        vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=64, use_cache=False, bos_token_id=1, eos_token_id=1
    )
    return transformers.GPT2LMHeadModel(config), _texts()


def llama() -> Model:
    config = transformers.LlamaConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config), _texts()


def vit() -> Model:
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        num_labels=3,
    )
    pictures = {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.tensor([0, 1, 2, 1])}
    return transformers.ViTForImageClassification(config), pictures


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.1),
            nn.Conv2d(8, 8, 3, stride=2),
            nn.GELU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 3),
        )

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layers(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def cnn() -> Model:
    return Convolutional(), {"x": torch.randn(4, 3, 16, 16), "labels": torch.tensor([0, 1, 2, 1])}


def loss_and_logits(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    outputs = model(**inputs)
    return outputs["loss"], outputs["logits"]


def tensors_of(captured: Captured, model: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    state = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    given = list(inputs.values())
    return [
        *(state[name].detach() for name in [*captured.trained, *captured.fixed]),
        *captured.constants,
        *(given[position] for position in captured.inputs),
        *(draw() for draw in captured.random),
    ]


@pytest.mark.parametrize("make", [bert, gpt2, llama, vit, cnn], ids=lambda make: make.__name__)
def test_a_training_step(make: Callable[[], Model]) -> None:
    model, inputs = make()
    model.train()
    framework, captured = JaxFramework(), capture(model, loss_and_logits, inputs)
    assert captured.missing(framework.operations) == {}

    def function(*arrays: Any) -> tuple[Any, ...]:
        outputs, changed = captured.run(framework.operations, arrays)
        return (*outputs, *changed)

    torch.manual_seed(7)
    arrays = [framework.array(tensor) for tensor in tensors_of(captured, model, inputs)]
    width = len(captured.trained)
    step = framework.compile(framework.with_gradients(function, width))
    loss, logits, *rest = [framework.tensor(array) for array in step(*arrays)]
    torch.manual_seed(7)
    wanted, wanted_logits = loss_and_logits(model, inputs)
    wanted.backward()
    torch.testing.assert_close(loss, wanted.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits, wanted_logits.detach(), rtol=1e-4, atol=1e-5)
    buffers = dict(model.named_buffers())
    for name, value in zip(captured.changed, rest[:-width], strict=True):
        torch.testing.assert_close(value, buffers[name], rtol=1e-5, atol=1e-6)
    parameters = dict(model.named_parameters())
    for name, gradient in zip(captured.trained, rest[-width:], strict=True):
        grad = parameters[name].grad
        assert grad is not None
        # Where attention's keys have a bias, its gradient is nothing but rounding.
        scale = max(float(grad.abs().max()), 1e-3)
        assert float((gradient - grad).abs().max()) <= 1e-4 * scale, name


@pytest.mark.parametrize("make", [bert, gpt2, llama, vit, cnn], ids=lambda make: make.__name__)
@pytest.mark.parametrize("jit", [True, False], ids=["jit", "eager"])
def test_evaluation(make: Callable[[], Model], jit: bool) -> None:
    model, inputs = make()
    model.eval()
    framework, captured = JaxFramework(jit=jit), capture(model, loss_and_logits, inputs)
    assert captured.random == []
    run = framework.compile(lambda *arrays: tuple(captured.run(framework.operations, arrays)[0]))
    loss, logits = run(*(framework.array(tensor) for tensor in tensors_of(captured, model, inputs)))
    with torch.no_grad():
        wanted, wanted_logits = loss_and_logits(model, inputs)
    torch.testing.assert_close(framework.tensor(loss), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(framework.tensor(logits), wanted_logits, rtol=1e-4, atol=1e-5)
