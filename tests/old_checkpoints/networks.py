"""Models and data of the kept checkpoints: numbers from formulas, so that no library's random numbers decide them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import IterableDataset


def wave(shape: tuple[int, ...], phase: float) -> Tensor:
    """Numbers in [-1, 1] that are all different, the same on every machine to the last bit that matters here."""
    count = math.prod(shape)
    return torch.tensor([math.sin(phase + 1.7 * i + 0.013 * i * i) for i in range(count)], dtype=torch.float64).reshape(
        shape
    )


def fill(model: nn.Module, scale: float = 0.4) -> nn.Module:
    """Give every parameter of ``model`` values from a formula."""
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            parameter.copy_(scale * wave(tuple(parameter.shape), 0.3 + place))
    return model


class Thinned(nn.Module):
    """Dropout from ``torch.rand``, whose numbers depend on no vector unit."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.rand(x.shape, dtype=x.dtype) >= self.share) if self.training else x


class Net(nn.Module):
    """Two layers, running statistics and dropout in between."""

    def __init__(self, phase: float = 0.0, dtype: torch.dtype = torch.float64, *, noisy: bool = True) -> None:
        super().__init__()
        middle = [nn.BatchNorm1d(4), Thinned(0.2)] if noisy else []
        # Before a batch norm the gradient of a bias is nothing but rounding, which Adam would make much of.
        self.first, self.middle = nn.Linear(3, 4, bias=not noisy), nn.Sequential(*middle)
        self.last = nn.Linear(4, 2)
        fill(self, 0.4 + phase)
        self.to(dtype)

    def logits(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.middle(self.first(x))))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.logits(x)
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


def rows(count: int = 22, dtype: torch.dtype = torch.float64, phase: float = 0.0) -> list[dict[str, Tensor]]:
    x = wave((count, 3), phase)
    return [{"x": x[i].to(dtype), "labels": torch.tensor(int(x[i].sum() > 0))} for i in range(count)]


class Stream(IterableDataset[Any]):
    """Knows its own place, and draws while it is read."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Iterator[Any]:
        source = rows()
        while self.place < len(source):
            row = source[self.place]
            self.place += 1
            yield {**row, "x": row["x"] + 0.1 * torch.rand(3, dtype=torch.float64)}
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


# ---- models of transformers


def bert() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=12,
        hidden_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=4,
        max_position_embeddings=6,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return fill(BertForSequenceClassification(config).double())


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes: dict[str, Any] = {"vocab_size": 12, "d_model": 4, "d_kv": 2, "d_ff": 4, "num_layers": 1, "num_heads": 2}
    tokens: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    return fill(T5ForConditionalGeneration(T5Config(**sizes, **tokens, dropout_rate=0.0)).double())


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=12,
        hidden_size=4,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    return fill(LlamaForCausalLM(config).double())


def adapted(phase: float = 0.0) -> Any:
    import peft

    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(llama(), config, autocast_adapter_dtype=False)
    with torch.no_grad():
        for place, (name, parameter) in enumerate(model.named_parameters()):
            if "lora_" in name:
                parameter.data = 0.3 * wave(tuple(parameter.shape), place + phase)
    return model


def token_rows(count: int = 12, labels: str = "class") -> list[dict[str, Tensor]]:
    """Six tokens each, with a class, the same tokens or a short answer as label."""
    found = []
    for i in range(count):
        ids = torch.tensor([2 + (3 * i + 5 * place + i * place) % 10 for place in range(6)])
        label = {"class": torch.tensor(i % 2), "tokens": ids, "answer": ids[1:4]}[labels]
        found.append({"input_ids": ids, "attention_mask": torch.ones(6, dtype=torch.long), "labels": label})
    return found
