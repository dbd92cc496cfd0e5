"""What the tests of data share: a real tokenizer built offline, and arguments by Hugging Face's names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from trainwright import TrainingArguments

WORDS = ["the", "cat", "dog", "sat", "ran", "on", "mat", "a", "big", "small", "red", "##s", "##ing", "blue", "tree"]


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., Any]:
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    def make(side: str = "right") -> Any:
        vocabulary = {word: place for place, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
        backend = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
        backend.pre_tokenizer = Whitespace()
        backend.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        return PreTrainedTokenizerFast(
            tokenizer_object=backend,
            pad_token="[PAD]",
            unk_token="[UNK]",
            cls_token="[CLS]",
            sep_token="[SEP]",
            mask_token="[MASK]",
            padding_side=side,
        )

    return make


@pytest.fixture
def tokenizer(make_tokenizer: Callable[..., Any]) -> Any:
    return make_tokenizer()


@dataclass
class InProcess(TrainingArguments):
    """As the process of a number that is given."""

    number: int = 0

    @property
    def process_index(self) -> int:
        return self.number


@pytest.fixture
def make_args() -> Callable[..., TrainingArguments]:
    def make(**changes: Any) -> TrainingArguments:
        return InProcess("out", per_device_eval_batch_size=4, **changes)

    return make
