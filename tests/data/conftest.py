"""What the tests of data share: a real tokenizer built offline, and arguments by Hugging Face's names."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

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


@pytest.fixture
def make_args() -> Callable[..., Any]:
    def make(**changes: Any) -> Any:
        values: dict[str, Any] = {
            "dataloader_num_workers": 0,
            "dataloader_pin_memory": True,
            "dataloader_persistent_workers": False,
            "dataloader_prefetch_factor": None,
            "dataloader_drop_last": False,
            "dataloader_multiprocessing_context": None,
            "dataloader_in_order": True,
            "train_sampling_strategy": "random",
            "length_column_name": "length",
            "per_device_eval_batch_size": 4,
            "gradient_accumulation_steps": 1,
            "max_tokens_per_batch": None,
            "process_index": 0,
            "data_seed": None,
            "seed": 42,
        }
        return SimpleNamespace(**{**values, **changes})

    return make
