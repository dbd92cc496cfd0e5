"""Small models of the kinds that people train, with a batch for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Made = tuple[nn.Module, dict[str, Tensor]]
_SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}


def _text(labels: str) -> dict[str, Tensor]:
    tokens = torch.randint(3, 50, (3, 8))
    mask = torch.ones_like(tokens)
    mask[0, 5:] = 0
    return {
        "input_ids": tokens,
        "attention_mask": mask,
        "labels": tokens.clone() if labels == "tokens" else torch.tensor([0, 1, 0]),
    }


def bert() -> Made:
    import transformers

    return transformers.BertForSequenceClassification(transformers.BertConfig(**_SIZES)), _text("classes")


def gpt2() -> Made:
    import transformers

    config = transformers.GPT2Config(
        vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32, bos_token_id=1, eos_token_id=2, use_cache=False
    )
    return transformers.GPT2LMHeadModel(config), _text("tokens")


def llama() -> Made:
    import transformers

    config = transformers.LlamaConfig(**_SIZES, num_key_value_heads=1, attention_dropout=0.1, use_cache=False)
    return transformers.LlamaForCausalLM(config), _text("tokens")


def t5() -> Made:
    import transformers

    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, use_cache=False
    )
    config.decoder_start_token_id = 0
    return transformers.T5ForConditionalGeneration(config), _text("tokens")


def vit() -> Made:
    import transformers

    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=8,
        hidden_dropout_prob=0.1,
    )
    config.num_labels = 3
    return transformers.ViTForImageClassification(config), {
        "pixel_values": torch.randn(3, 3, 16, 16),
        "labels": torch.tensor([0, 2, 1]),
    }


class Classifier(nn.Module):
    """Any network with a cross-entropy."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.network(x)
        return {"loss": F.cross_entropy(logits, labels, label_smoothing=0.1), "logits": logits}


class Residual(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.around = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.around(x))


def _images() -> dict[str, Tensor]:
    return {"x": torch.randn(4, 3, 16, 16), "labels": torch.tensor([0, 2, 1, 1])}


def resnet() -> Made:
    network = nn.Sequential(
        *(nn.Conv2d(3, 6, 7, 2, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
        *(Residual(6, 8, 1), Residual(8, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)),
    )
    return Classifier(network), _images()


def cnn() -> Made:
    network = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.1)),
        *(nn.Conv2d(8, 8, 3, stride=2), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)),
    )
    return Classifier(network), _images()


class Recurrent(nn.Module):
    """A bidirectional LSTM or GRU over embeddings."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8, padding_idx=3)
        self.layers = kind(8, 8, num_layers=2, batch_first=True, bidirectional=True, dropout=0.3)
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.embedding(x))[0].mean(1))


def recurrent(kind: Any) -> Made:
    return Classifier(Recurrent(kind)), {"x": torch.randint(3, 50, (3, 5)), "labels": torch.tensor([0, 1, 0])}


MODELS: dict[str, Callable[[], Made]] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "t5": t5,
    "vit": vit,
    "resnet": resnet,
    "cnn": cnn,
    "lstm": lambda: recurrent(nn.LSTM),
    "gru": lambda: recurrent(nn.GRU),
}
