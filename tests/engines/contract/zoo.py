"""Models that the engines must train, each tiny and with data of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Made = tuple[nn.Module, list[dict[str, Tensor]]]
_SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def _tokens(causal: bool) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    rows = []
    for number in range(32):
        ids = torch.randint(3, 48, (16,), generator=generator)
        mask = (torch.arange(16) < 9 + number % 8).long()
        labels = torch.where(mask.bool(), ids, -100) if causal else torch.tensor(number % 2)
        if not causal:
            ids[1] = number % 2
        rows.append({"input_ids": ids * mask, "attention_mask": mask, "labels": labels})
    return rows


def _pictures(side: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(4)
    pictures = torch.randn(32, 3, side, side, generator=generator)
    return [{"pixel_values": picture, "labels": torch.tensor(i % 3)} for i, picture in enumerate(pictures)]


def bert() -> Made:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(vocab_size=48, max_position_embeddings=32, **_SIZES)), _tokens(
        False
    )


def gpt2() -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=48, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2, use_cache=False
    )
    return GPT2LMHeadModel(config), _tokens(True)


def llama() -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=48, max_position_embeddings=32, num_key_value_heads=1, use_cache=False, **_SIZES)
    return LlamaForCausalLM(config), _tokens(True)


def vit() -> Made:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    sizes: dict[str, Any] = {**_SIZES, "image_size": 16, "patch_size": 8, "num_labels": 3}
    return ViTForImageClassification(ViTConfig(**sizes)), _pictures(16)


def swin() -> Made:
    """Shifted windows, layers that are skipped at random, and a pooling that torch reads by strides."""
    from transformers import SwinConfig, SwinForImageClassification

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "num_labels": 3, "window_size": 4}
    return SwinForImageClassification(SwinConfig(depths=[2, 2], num_heads=[2, 2], **sizes)), _pictures(16)


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.1),
            nn.Conv2d(4, 4, 3, stride=2, padding=1),
            nn.GELU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 3),
        )

    def forward(self, pixel_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.network(pixel_values)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def cnn() -> Made:
    torch.manual_seed(0)
    return Convolutional(), _pictures(8)


class Windowed(nn.Module):
    """Reads its values by their places in memory: windows that overlap, of a matrix that was turned."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 6), nn.Linear(2, 3)

    def forward(self, pixel_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        rows = torch.tanh(self.first(pixel_values.mean((1, 2)))).t() * 2
        windows = rows.as_strided((len(labels), 5, 2), (6, 1, 1))
        logits = self.second(windows).sum(1)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def windows() -> Made:
    torch.manual_seed(0)
    return Windowed(), _pictures(8)


MODELS: dict[str, Callable[[], Made]] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "vit": vit,
    "swin": swin,
    "cnn": cnn,
    "windows": windows,
}
