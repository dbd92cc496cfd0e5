"""Tiny tokenizers that know a chat template's own tokens, and models of a few thousand weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import transformers as tf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

#: How templates write the tokens that steer a chat.
CONTROL = re.compile(r"<[|\uff5c][^<>|\uff5c\s'\"]{1,60}[|\uff5c]>|</?(?:start|end)_of_\w+>|<\|\w+>|<\w+\|>")

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
MARKED = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}"
    "{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_TEXT = "A fox lives in a den. Where does the owl sleep? user assistant system model tool call name arguments\n"


def tokenizer(template: str | None = CHATML, *, pad: str = "<pad>", control: list[str] | None = None) -> Any:
    """Bytes and a few pairs, with the special tokens that ``template`` writes (or ``control``)."""
    words = sorted(set(CONTROL.findall(template or ""))) if control is None else control
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    inner.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    special = list(dict.fromkeys(["<s>", "</s>", pad, *words]))
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator([_TEXT] * 4, trainer)
    found = tf.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<s>",
        eos_token="</s>",
        pad_token=pad,
        additional_special_tokens=words,
        model_max_length=512,
    )
    found.chat_template = template
    return found


def sentencepiece_like(template: str) -> Any:
    """Words with their space in front, and bytes for letters that are not known: as Llama 2 and Mistral have it."""
    special = ["<unk>", "<s>", "</s>"]
    pieces = [
        *special,
        *(f"<0x{number:02X}>" for number in range(256)),
        "\u2581",
        *sorted(set(_TEXT + "INST/[]") - {" ", "\n"}),
    ]
    letters = [("\u2581", "I"), ("\u2581I", "n"), ("]", "\u2581")]
    vocabulary = {piece: place for place, piece in enumerate(dict.fromkeys([*pieces, *map("".join, letters)]))}
    inner = Tokenizer(models.BPE(vocabulary, letters, byte_fallback=True, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)  # type: ignore[assignment]
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    inner.decoder = decoders.Sequence(steps)  # type: ignore[assignment]
    found = tf.PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>", model_max_length=512
    )
    found.chat_template = template
    return found


def model_folder(folder: Path, template: str | None = CHATML, **options: Any) -> Path:
    """A tiny Llama with its tokenizer, as if it had been downloaded."""
    made = tokenizer(template, **options)
    made.save_pretrained(str(folder))
    config = tf.LlamaConfig(
        vocab_size=len(made),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=512,
        bos_token_id=made.bos_token_id,
        eos_token_id=made.eos_token_id,
        pad_token_id=made.pad_token_id,
    )
    tf.set_seed(0)
    tf.LlamaForCausalLM(config).save_pretrained(str(folder))
    return folder
