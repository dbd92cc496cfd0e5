"""Language-model collators hide what they should, as often as they should, and as transformers does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from trainwright.data import collators as ours

SENTENCES = ["the cats sat on the mat", "dogs ran", "a big red cat sitting", "the dog"]


def assert_same(mine: Any, theirs: Any) -> None:
    assert set(mine) == set(theirs)
    for key, expected in theirs.items():
        assert type(mine[key]) is type(expected), key
        assert mine[key].dtype == expected.dtype, key
        assert np.array_equal(np.asarray(mine[key]), np.asarray(expected)), key


def encode(tokenizer: Any, **options: Any) -> list[Any]:
    return [dict(tokenizer(sentence, **options)) for sentence in SENTENCES]


@pytest.mark.parametrize("framework", ["pt", "np"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_causal_labels(make_tokenizer: Callable[..., Any], side: str, framework: str) -> None:
    tokenizer = make_tokenizer(side)
    options = {"mlm": False, "pad_to_multiple_of": 8, "return_tensors": framework}
    mine = ours.DataCollatorForLanguageModeling(tokenizer, **options)
    theirs = transformers.DataCollatorForLanguageModeling(tokenizer, **options)
    rows = encode(tokenizer)
    ids = [row["input_ids"] for row in rows]
    for features in (rows, ids, [torch.tensor(row) for row in ids] if framework == "pt" else ids[:1]):
        assert_same(mine(features), theirs(features))


@pytest.mark.parametrize("framework", ["pt", "np"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mlm_probability": 0.5, "mask_replace_prob": 0.5, "random_replace_prob": 0.4},
        {"mask_replace_prob": 1.0, "random_replace_prob": 0.0},
        {"mask_replace_prob": 0.0, "random_replace_prob": 1.0},
        {"whole_word_mask": True, "mask_replace_prob": 1, "random_replace_prob": 0, "mlm_probability": 0.4},
    ],
)
def test_masking_with_a_seed_is_that_of_transformers(tokenizer: Any, options: dict[str, Any], framework: str) -> None:
    extra = {"return_offsets_mapping": True} if "whole_word_mask" in options else {}
    options = {**options, "seed": 11, "return_tensors": framework}
    mine = ours.DataCollatorForLanguageModeling(tokenizer, **options)
    theirs = transformers.DataCollatorForLanguageModeling(tokenizer, **options)
    # Offsets are pairs and the tokenizer pads single numbers, so those samples must be equally long already.
    sentences = ["the cats sat", "big dogs ran"] if extra else SENTENCES
    for with_special in (True, False):
        features = [dict(tokenizer(s, return_special_tokens_mask=with_special, **extra)) for s in sentences]
        for _ in range(3):
            assert_same(mine(features), theirs(features))


def test_masking_without_a_seed_uses_the_global_generator(tokenizer: Any) -> None:
    features = encode(tokenizer)
    torch.manual_seed(5)
    mine = ours.DataCollatorForLanguageModeling(tokenizer)(features)
    torch.manual_seed(5)
    assert_same(mine, transformers.DataCollatorForLanguageModeling(tokenizer)(features))


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_shares_of_hidden_tokens(tokenizer: Any, framework: str) -> None:
    ids = np.full((200, 100), 6)
    collator = ours.DataCollatorForLanguageModeling(tokenizer, seed=0, return_tensors=framework)
    batch = collator([{"input_ids": row.tolist(), "special_tokens_mask": [1] + [0] * 99} for row in ids])
    inputs, labels = np.asarray(batch["input_ids"]), np.asarray(batch["labels"])
    hidden = labels != -100
    assert not hidden[:, 0].any(), "special tokens are never hidden"
    assert (labels[hidden] == 6).all()
    assert (inputs[~hidden] == 6).all()
    assert hidden[:, 1:].mean() == pytest.approx(0.15, abs=0.01)
    shown = inputs[hidden]
    assert (shown == tokenizer.mask_token_id).mean() == pytest.approx(0.8 + 0.1 / len(tokenizer), abs=0.03)
    assert (shown == 6).mean() == pytest.approx(0.1 + 0.1 / len(tokenizer), abs=0.03)


def test_whole_words_without_offsets_follow_word_pieces(tokenizer: Any) -> None:
    collator = ours.DataCollatorForWholeWordMask(tokenizer, mlm_probability=0.5, seed=1)
    seen = set()
    for _ in range(30):
        batch = collator([dict(tokenizer("cats sat"))])  # [CLS] cat ##s sat [SEP]
        hidden = (batch["labels"][0] != -100).tolist()
        assert hidden[1] == hidden[2]
        assert not hidden[0]
        assert not hidden[4]
        seen.add(tuple(hidden))
    assert len(seen) == 4


def test_permutation_masking_is_that_of_transformers(tokenizer: Any) -> None:
    features = [{"input_ids": [2, *range(5, 17), 3]}, {"input_ids": [2, *range(5, 15), 3]}]
    mine, theirs = (
        library.DataCollatorForPermutationLanguageModeling(tokenizer, max_span_length=2, plm_probability=0.5)
        for library in (ours, transformers)
    )
    for seed in range(5):
        torch.manual_seed(seed)
        got = mine(features)
        torch.manual_seed(seed)
        assert_same(got, theirs(features))
    assert isinstance(mine(features, return_tensors="np")["perm_mask"], np.ndarray)
    with pytest.raises(ValueError, match="even length, got 3"):
        mine([{"input_ids": [1, 2, 3]}])


def test_wrong_arguments_are_refused(tokenizer: Any, make_tokenizer: Callable[..., Any]) -> None:
    make = ours.DataCollatorForLanguageModeling
    with pytest.raises(ValueError, match="mlm_probability"):
        make(tokenizer, mlm_probability=1.5)
    with pytest.raises(ValueError, match="must not exceed 1"):
        make(tokenizer, mask_replace_prob=0.8, random_replace_prob=0.3)
    with pytest.raises(ValueError, match="random_replace_prob must lie"):
        make(tokenizer, mask_replace_prob=1, random_replace_prob=-0.1)
    with pytest.raises(ValueError, match="needs mlm=True"):
        make(tokenizer, mlm=False, whole_word_mask=True)
    with pytest.warns(UserWarning, match="mask_replace_prob is set to 1"):
        make(tokenizer, whole_word_mask=True)
    with pytest.raises(ValueError, match="'pt' or 'np'"):
        make(tokenizer, return_tensors="tf")([[1]])
    bare = make_tokenizer()
    bare.mask_token = None
    with pytest.raises(ValueError, match="mlm=False"):
        make(bare)
    bare.pad_token = None
    with pytest.raises(ValueError, match="no pad token"):
        make(bare, mlm=False)([[1], [1, 2]])


def test_workers_do_not_share_the_main_process_generator(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    features = [{"input_ids": [2, *range(5, 17), 3] * 4}]
    collator = ours.DataCollatorForLanguageModeling(tokenizer, seed=1)
    collator(features)
    drawn = []
    for worker in (0, 1):
        monkeypatch.setattr("trainwright.data.collators_lm.get_worker_info", lambda: SimpleNamespace(id=worker))  # noqa: B023
        drawn.append(collator(features)["labels"].tolist())
    fresh = ours.DataCollatorForLanguageModeling(tokenizer, seed=2)
    monkeypatch.setattr("trainwright.data.collators_lm.get_worker_info", lambda: None)
    assert drawn[0] != drawn[1] == fresh(features)["labels"].tolist()
