"""Small models and data for tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Plain(nn.Module):
    """A module with its own mean loss, whose forward swallows any keyword."""

    def __init__(self, width: int = 6, classes: int = 3, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first = nn.Linear(width, 8)
        self.second = nn.Linear(8, classes)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)

    def logits(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))

    def forward(self, x: Tensor, labels: Tensor | None = None, **kwargs: Any) -> dict[str, Tensor]:
        logits = self.logits(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Bare(Plain):
    """The same network without a loss of its own."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.logits(x)


def classification_rows(
    count: int = 16, width: int = 6, classes: int = 3, seed: int = 1, dtype: torch.dtype = torch.float32
) -> list[dict[str, Tensor]]:
    """Random rows with labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, width, generator=generator, dtype=torch.float64).to(dtype)
    y = torch.randint(0, classes, (count,), generator=generator)
    return [{"x": x[i], "labels": y[i]} for i in range(count)]


def token_rows(
    count: int = 16, vocabulary: int = 32, longest: int = 12, seed: int = 2, empty_row: bool = False
) -> list[dict[str, Tensor]]:
    """Padded rows of different length with labels -100 on the padding, and, if asked, one row with no target at all."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for index in range(count):
        length = int(torch.randint(3, longest + 1, (1,), generator=generator))
        ids = torch.randint(1, vocabulary, (longest,), generator=generator)
        mask = (torch.arange(longest) < length).long()
        labels = torch.where(mask.bool(), ids, -100)
        if empty_row and index == 5:
            labels = torch.full_like(labels, -100)
        rows.append({"input_ids": ids * mask, "attention_mask": mask, "labels": labels})
    return rows


def tiny_gpt2(seed: int = 0) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=32,
        n_positions=32,
        n_embd=16,
        n_layer=2,
        n_head=2,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def tiny_llama(seed: int = 0) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def tiny_mixture(seed: int = 0) -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(seed)
    config = MixtralConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=4,
        max_position_embeddings=32,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    return MixtralForCausalLM(config)


def tiny_bert(labels: int = 3, seed: int = 0) -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    config.num_labels = labels
    return BertForSequenceClassification(config)


def sentence_rows(
    count: int = 16, vocabulary: int = 32, length: int = 8, classes: int = 3, seed: int = 3
) -> list[dict[str, Tensor]]:
    """Token rows of equal length with one label each."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, vocabulary, (count, length), generator=generator)
    labels = torch.randint(0, classes, (count,), generator=generator)
    return [
        {"input_ids": ids[i], "attention_mask": torch.ones(length, dtype=torch.long), "labels": labels[i]}
        for i in range(count)
    ]
