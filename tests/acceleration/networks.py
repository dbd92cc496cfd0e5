"""Small networks of many kinds, each with a batch: for what must hold in any of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

WORDS = 96


def tokens(rows: int = 4, length: int = 12) -> Tensor:
    return torch.randint(3, WORDS, (rows, length), generator=torch.Generator().manual_seed(0))


def causal_batch() -> dict[str, Tensor]:
    ids = tokens()
    labels = ids.clone()
    labels[0, :5] = -100
    return {"input_ids": ids, "labels": labels}


def padded_batch() -> dict[str, Tensor]:
    batch = causal_batch()
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    batch["attention_mask"][1, 8:] = 0
    batch["labels"][1, 8:] = -100
    return batch


def masked_batch() -> dict[str, Tensor]:
    ids = tokens()
    labels = torch.where(ids % 3 == 0, ids, -100)
    return {"input_ids": ids, "labels": labels}


_SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}


def llama(**options: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config: dict[str, Any] = {**_SMALL, "num_key_value_heads": 2, "vocab_size": WORDS, "use_cache": False, **options}
    return LlamaForCausalLM(LlamaConfig(**config))


def tied_llama() -> Any:
    return llama(tie_word_embeddings=True)


def qwen2() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**_SMALL, num_key_value_heads=2, vocab_size=WORDS, use_cache=False))


def gpt2() -> Any:
    """Tied head, dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(n_embd=32, n_layer=3, n_head=4, n_positions=32, vocab_size=WORDS, use_cache=False)
    )


def gemma2() -> Any:
    """Soft-capped logits."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(**_SMALL, num_key_value_heads=2, head_dim=8, vocab_size=WORDS, use_cache=False)
    return Gemma2ForCausalLM(config)


def mixtral() -> Any:
    """A mixture of experts."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        **_SMALL, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, vocab_size=WORDS, use_cache=False
    )
    return MixtralForCausalLM(config)


def opt() -> Any:
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        hidden_size=32,
        ffn_dim=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        vocab_size=WORDS,
        max_position_embeddings=64,
        word_embed_proj_dim=32,
        use_cache=False,
    )
    return OPTForCausalLM(config)


def gpt_neox() -> Any:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return GPTNeoXForCausalLM(GPTNeoXConfig(**_SMALL, vocab_size=WORDS, max_position_embeddings=64, use_cache=False))


def bert() -> Any:
    """A head with a bias, and dropout."""
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(**_SMALL, vocab_size=WORDS, max_position_embeddings=64))


def distilbert() -> Any:
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    config = DistilBertConfig(
        dim=32, hidden_dim=48, n_layers=3, n_heads=4, vocab_size=WORDS, max_position_embeddings=64
    )
    return DistilBertForMaskedLM(config)


def t5() -> Any:
    """An encoder and a decoder, whose states are scaled before a tied head."""
    from transformers import T5Config, T5ForConditionalGeneration

    kind: Any = T5Config
    config = kind(
        d_model=32,
        d_ff=48,
        num_layers=3,
        num_heads=4,
        d_kv=8,
        vocab_size=WORDS,
        decoder_start_token_id=0,
        pad_token_id=0,
        use_cache=False,
    )
    return T5ForConditionalGeneration(config)


def bart() -> Any:
    """Adds a bias to its logits."""
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        vocab_size=WORDS,
        max_position_embeddings=64,
        use_cache=False,
    )
    return BartForConditionalGeneration(config)


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.drop = nn.Conv2d(8, 8, 3, padding=1), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.second(torch.relu(self.norm(self.first(x)))))


class Convolutional(nn.Module):
    """BatchNorm and dropout, and no transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.stages = nn.Sequential(nn.Sequential(_Residual(), _Residual()), nn.Sequential(_Residual(), _Residual()))
        self.head = nn.Linear(8, 5)

    def forward(self, pixels: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.head(self.stages(self.stem(pixels)).mean((2, 3)))
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def image_batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {"pixels": torch.randn(4, 3, 10, 10, generator=generator), "labels": torch.tensor([0, 1, 2, 3])}


def vit() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    kind: Any = ViTConfig
    config = kind(**_SMALL, image_size=8, patch_size=4, num_labels=5)
    return ViTForImageClassification(config)


def vit_batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {"pixel_values": torch.randn(4, 3, 8, 8, generator=generator), "labels": torch.tensor([0, 1, 2, 3])}


#: Builder and batch by name; those of the first group have an output layer over a vocabulary.
LANGUAGE: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Tensor]]]] = {
    "llama": (llama, causal_batch),
    "llama padded": (llama, padded_batch),
    "llama tied": (tied_llama, causal_batch),
    "qwen2": (qwen2, causal_batch),
    "gpt2": (gpt2, causal_batch),
    "gemma2": (gemma2, causal_batch),
    "mixtral": (mixtral, causal_batch),
    "opt": (opt, padded_batch),
    "gpt-neox": (gpt_neox, causal_batch),
    "bert": (bert, masked_batch),
    "distilbert": (distilbert, masked_batch),
    "t5": (t5, causal_batch),
    "bart": (bart, causal_batch),
}
EVERY = {**LANGUAGE, "convolutional": (Convolutional, image_batch), "vit": (vit, vit_batch)}


def made(name: str) -> tuple[Any, dict[str, Tensor]]:
    build, batch = EVERY[name]
    torch.manual_seed(0)
    network = build()
    network.train()
    return network, batch()


def lengths_batch(*, labels: str = "words", is_left: bool = False) -> dict[str, Tensor]:
    """Four texts of 5, 12, 1 and 8 tokens, with a label for each token or for each text."""
    ids, mask = tokens(), torch.zeros(4, 12, dtype=torch.long)
    for row, length in enumerate((5, 12, 1, 8)):
        mask[row, 12 - length :] = 1
        mask[row] = mask[row] if is_left else mask[row].flip(0)
    ids = torch.where(mask.bool(), ids, 0)
    batch = {"input_ids": ids, "attention_mask": mask}
    if labels == "texts":
        return {**batch, "labels": torch.tensor([0, 1, 1, 0])}
    trained = mask.bool() & nn.functional.pad(mask[:, :-1], (1, 0), value=1).bool()
    return {**batch, "labels": torch.where(trained, ids if labels == "words" else ids % 5, -100)}


def small(model: str, **options: Any) -> Any:
    """A model of transformers by its name, small."""
    import transformers

    config: Any = getattr(transformers, model.split("For", maxsplit=1)[0].removesuffix("LMHeadModel") + "Config")
    return getattr(transformers, model)(config(**{**_SMALL, "vocab_size": WORDS, **options}))


_GROUPED = {"num_key_value_heads": 2, "use_cache": False}
_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}

#: Networks that can do without padding: builder, and what a label stands at.
PADDED: dict[str, tuple[Callable[[], Any], str]] = {
    "llama": (llama, "words"),
    "qwen2": (qwen2, "words"),
    "qwen3": (lambda: small("Qwen3ForCausalLM", head_dim=8, **_GROUPED), "words"),
    "mistral": (lambda: small("MistralForCausalLM", sliding_window=None, **_GROUPED), "words"),
    "gemma": (lambda: small("GemmaForCausalLM", head_dim=8, **_GROUPED), "words"),
    "phi": (lambda: small("PhiForCausalLM", use_cache=False), "words"),
    "phi3": (lambda: small("Phi3ForCausalLM", use_cache=False, **_ENDS), "words"),
    "gpt-neox": (gpt_neox, "words"),
    "gpt2": (lambda: small("GPT2LMHeadModel", **_GPT2), "words"),
    "opt": (opt, "words"),
    "granite": (lambda: small("GraniteForCausalLM", **_GROUPED), "words"),
    "mixtral": (lambda: small("MixtralForCausalLM", num_local_experts=4, sliding_window=None, **_GROUPED), "words"),
    "llama classifier": (lambda: small("LlamaForSequenceClassification", pad_token_id=0, **_GROUPED), "texts"),
    "bert": (bert, "words"),
    "bert classifier": (lambda: small("BertForSequenceClassification"), "texts"),
    "bert tagger": (lambda: small("BertForTokenClassification", num_labels=5), "tags"),
    "roberta classifier": (lambda: small("RobertaForSequenceClassification", pad_token_id=0), "texts"),
    "xlm-roberta tagger": (lambda: small("XLMRobertaForTokenClassification", num_labels=5, pad_token_id=0), "tags"),
    "distilbert": (distilbert, "words"),
    "electra classifier": (lambda: small("ElectraForSequenceClassification", embedding_size=32), "texts"),
}


def made_padded(name: str, *, is_left: bool = False) -> tuple[Any, dict[str, Tensor]]:
    build, labels = PADDED[name]
    torch.manual_seed(0)
    network = build()
    network.train()
    return network, lengths_batch(labels=labels, is_left=is_left)
