"""Tiny models of transformers and their tokenizers, written into folders as if they had been downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers as tf
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = "good bad fine awful film book plot the a is was very so red green blue one two three".split()  # noqa: SIM905


def tokenizer_folder(folder: Path) -> Any:
    """A word-level tokenizer that knows a handful of words."""
    torch.manual_seed(0)
    special = ["[PAD]", "[UNK]", "[EOS]"]
    vocabulary = {word: index for index, word in enumerate([*special, *WORDS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    tokenizer = tf.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]", model_max_length=64
    )
    tokenizer.save_pretrained(str(folder))
    return tokenizer


def bert(folder: Path) -> Path:
    size = len(tokenizer_folder(folder))
    config = tf.BertConfig(
        vocab_size=size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    tf.BertModel(config).save_pretrained(str(folder))
    return folder


def gpt(folder: Path) -> Path:
    size = len(tokenizer_folder(folder))
    config = tf.GPT2Config(vocab_size=size, n_embd=16, n_layer=1, n_head=2, n_positions=64, eos_token_id=2)
    tf.GPT2LMHeadModel(config).save_pretrained(str(folder))
    return folder


def bart(folder: Path) -> Path:
    size = len(tokenizer_folder(folder))
    config = tf.BartConfig(
        vocab_size=size,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_eos_token_id=None,
        init_std=0.3,
    )
    tf.BartForConditionalGeneration(config).save_pretrained(str(folder))
    return folder


def vit(folder: Path) -> Path:
    torch.manual_seed(0)
    config = tf.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8
    )
    tf.ViTForImageClassification(config).save_pretrained(str(folder))
    processor = tf.ViTImageProcessor(size={"height": 16, "width": 16})
    processor.save_pretrained(str(folder))
    return folder
