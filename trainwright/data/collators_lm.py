"""Collators that make the labels of a language model from its inputs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from trainwright.data.collators_text import FrameworkCall, pad_with, round_up

_IGNORED = -100


@dataclass
class DataCollatorForLanguageModeling(FrameworkCall):
    """Pads, and makes ``labels``: the inputs themselves (``mlm=False``), or the tokens hidden from the model.

    Args:
        tokenizer: Pads, and knows the mask token and the special tokens.
        mlm: Hide tokens and ask for them; otherwise the labels are the inputs, with padding ignored.
        whole_word_mask: Hide all tokens of a word or none. Words are found from ``offset_mapping`` where the samples
            have it, else from WordPiece's ``##``.
        mlm_probability: The share of tokens to hide.
        mask_replace_prob: Of the hidden tokens, the share shown as the mask token.
        random_replace_prob: Of the hidden tokens, the share shown as a random token. The rest is shown as it is.
        pad_to_multiple_of: Pad to a multiple of this length.
        return_tensors: ``"pt"`` or ``"np"``.
        seed: Makes hiding repeatable; a worker adds its number. Without it the global generators are used.
    """

    tokenizer: Any
    mlm: bool = True
    whole_word_mask: bool = False
    mlm_probability: float | None = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"
    seed: int | None = None
    generator: Any = field(default=None, init=False, repr=False, compare=False)
    _owner: int = field(default=-1, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.mlm:
            self._check_masking()
        elif self.whole_word_mask:
            raise ValueError("whole_word_mask hides words, so it needs mlm=True")
        for name in ("mask_replace_prob", "random_replace_prob"):
            share = float(getattr(self, name))
            if not 0 <= share <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {share}")
            setattr(self, name, share)
        if self.mask_replace_prob + self.random_replace_prob > 1:
            raise ValueError(
                f"mask_replace_prob + random_replace_prob must not exceed 1, got "
                f"{self.mask_replace_prob} + {self.random_replace_prob}"
            )
        if self.whole_word_mask and self.mask_replace_prob < 1:
            warnings.warn(
                "whole word masking shows every hidden token as the mask token; mask_replace_prob is set to 1",
                stacklevel=3,
            )
            self.mask_replace_prob, self.random_replace_prob = 1.0, 0.0

    def _check_masking(self) -> None:
        if self.tokenizer.mask_token is None:
            raise ValueError(
                f"the tokenizer {type(self.tokenizer).__name__} has no mask token, which mlm=True needs; "
                "pass mlm=False to train a causal language model"
            )
        if self.mlm_probability is None or not 0 <= self.mlm_probability <= 1:
            raise ValueError(f"mlm_probability must lie between 0 and 1, got {self.mlm_probability}")
        self.mlm_probability = float(self.mlm_probability)

    def torch_call(self, features: list[Any]) -> Any:
        batch = self._padded(features, "pt")
        special, offsets = batch.pop("special_tokens_mask", None), batch.pop("offset_mapping", None)
        if self.mlm:
            batch["input_ids"], batch["labels"] = self.torch_mask_tokens(batch["input_ids"], special, offsets)
        else:
            labels = batch["input_ids"].clone()
            if self.tokenizer.pad_token_id is not None:
                labels[labels == self.tokenizer.pad_token_id] = _IGNORED
            batch["labels"] = labels
        return batch

    def numpy_call(self, features: list[Any]) -> Any:
        batch = self._padded(features, "np")
        special, offsets = batch.pop("special_tokens_mask", None), batch.pop("offset_mapping", None)
        if self.mlm:
            batch["input_ids"], batch["labels"] = self.numpy_mask_tokens(batch["input_ids"], special, offsets)
        else:
            labels = np.copy(batch["input_ids"])
            if self.tokenizer.pad_token_id is not None:
                labels[labels == self.tokenizer.pad_token_id] = _IGNORED
            batch["labels"] = labels
        return batch

    def torch_mask_tokens(
        self, inputs: Any, special_tokens_mask: Any | None = None, offset_mapping: Any | None = None
    ) -> tuple[Any, Any]:
        """The inputs with tokens hidden (in place), and what was hidden; everything else is -100."""
        self._make_generator(torch_wanted=True)
        labels = inputs.clone()
        never, words = self._never_hidden(labels.numpy(), special_tokens_mask, offset_mapping)
        chances = torch.full(labels.shape, self.mlm_probability or 0.0).masked_fill_(torch.from_numpy(never), 0.0)
        hidden = self._torch_coin(chances)
        if words is not None:
            hidden = torch.from_numpy(_whole_words(words, hidden.numpy()))
        labels[~hidden] = _IGNORED
        masked = self._torch_coin(torch.full(labels.shape, self.mask_replace_prob)) & hidden
        inputs[masked] = self.tokenizer.convert_tokens_to_ids(self.tokenizer.mask_token)
        if self.mask_replace_prob < 1 and self.random_replace_prob > 0:
            # Of what the mask token left, the share that makes `random_replace_prob` of the whole.
            share = self.random_replace_prob / (1 - self.mask_replace_prob)
            swapped = self._torch_coin(torch.full(labels.shape, share)) & hidden & ~masked
            words_drawn = torch.randint(len(self.tokenizer), labels.shape, dtype=torch.long, generator=self.generator)
            inputs[swapped] = words_drawn[swapped]
        return inputs, labels

    def numpy_mask_tokens(
        self, inputs: Any, special_tokens_mask: Any | None = None, offset_mapping: Any | None = None
    ) -> tuple[Any, Any]:
        """``torch_mask_tokens`` for numpy arrays."""
        self._make_generator(torch_wanted=False)
        source = self.generator if self.generator is not None else np.random
        labels = np.copy(inputs)
        never, words = self._never_hidden(labels, special_tokens_mask, offset_mapping)
        chances = np.where(never, 0.0, np.full(labels.shape, self.mlm_probability))
        hidden = source.binomial(1, chances, size=labels.shape).astype(bool)
        if words is not None:
            hidden = _whole_words(words, hidden)
        labels[~hidden] = _IGNORED
        masked = source.binomial(1, self.mask_replace_prob, size=labels.shape).astype(bool) & hidden
        inputs[masked] = self.tokenizer.mask_token_id
        if self.mask_replace_prob < 1 and self.random_replace_prob > 0:
            share = self.random_replace_prob / (1 - self.mask_replace_prob)
            swapped = source.binomial(1, share, size=labels.shape).astype(bool) & hidden & ~masked
            draw = self.generator.integers if self.generator is not None else np.random.randint
            inputs[swapped] = draw(0, len(self.tokenizer), size=int(swapped.sum()), dtype=np.int64)
        return inputs, labels

    def _padded(self, features: list[Any], framework: str) -> Any:
        if isinstance(features[0], Mapping):
            return pad_with(
                self.tokenizer, features, return_tensors=framework, pad_to_multiple_of=self.pad_to_multiple_of
            )
        rows = pad_rows(features, self.tokenizer, self.pad_to_multiple_of)
        return {"input_ids": rows if framework == "pt" else rows.numpy()}

    def _torch_coin(self, chances: torch.Tensor) -> torch.Tensor:
        return torch.bernoulli(chances, generator=self.generator).bool()

    def _make_generator(self, torch_wanted: bool) -> None:
        if self.seed is None:
            return
        worker = get_worker_info()
        owner = -1 if worker is None else worker.id
        if self.generator is not None and self._owner == owner:
            return
        # Workers that shared a seed, or a copy of the main process's generator, would all hide the same places.
        seed = self.seed + max(owner, 0)
        self._owner = owner
        self.generator = torch.Generator().manual_seed(seed) if torch_wanted else np.random.default_rng(seed)

    def _never_hidden(
        self, ids: np.ndarray, special: Any | None, offsets: Any | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Places that are not to be drawn, and, for whole words, the word each token belongs to (-1: none)."""
        if special is None:
            special = [
                self.tokenizer.get_special_tokens_mask(row, already_has_special_tokens=True) for row in ids.tolist()
            ]
        is_special = np.asarray(special).astype(bool)
        if not self.whole_word_mask:
            return is_special, None
        if offsets is not None:
            starts = _word_starts(np.asarray(offsets), is_special)
        else:
            pieces = [self.tokenizer.convert_ids_to_tokens(row) for row in ids.tolist()]
            starts = ~np.array([[piece.startswith("##") for piece in row] for row in pieces]) & ~is_special
        words = np.cumsum(starts, axis=1)
        words[is_special] = -1
        # A word is drawn once, by its first token, so long words are not hidden more often.
        return ~starts, words


@dataclass
class DataCollatorForWholeWordMask(DataCollatorForLanguageModeling):
    """Masked language modeling that hides whole words; transformers 4's name for ``whole_word_mask=True``."""

    whole_word_mask: bool = True
    mask_replace_prob: float = 1.0
    random_replace_prob: float = 0.0


@dataclass
class DataCollatorForPermutationLanguageModeling(FrameworkCall):
    """XLNet's task: spans of tokens are predicted in a random order of factorisation.

    Args:
        tokenizer: Pads, and knows the mask token and the special tokens.
        plm_probability: Span length over the length of its surroundings.
        max_span_length: The longest span of tokens to predict.
    """

    tokenizer: Any
    plm_probability: float = 1 / 6
    max_span_length: int = 5
    return_tensors: str = "pt"

    def torch_call(self, features: list[Any]) -> dict[str, Any]:
        if isinstance(features[0], Mapping):
            features = [feature["input_ids"] for feature in features]
        inputs, perm_mask, target_mapping, labels = self.torch_mask_tokens(pad_rows(features, self.tokenizer))
        return {"input_ids": inputs, "perm_mask": perm_mask, "target_mapping": target_mapping, "labels": labels}

    def numpy_call(self, features: list[Any]) -> dict[str, Any]:
        return {name: tensor.numpy() for name, tensor in self.torch_call(features).items()}

    def torch_mask_tokens(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Inputs with spans masked, who may not see whom, which position is predicted where, and the labels."""
        rows, length = inputs.shape
        if self.tokenizer.mask_token is None:
            raise ValueError(f"the tokenizer {type(self.tokenizer).__name__} has no mask token; add one")
        if length % 2:
            raise ValueError(
                f"permutation language modeling needs sequences of even length, got {length}; pad or truncate them"
            )
        labels = inputs.clone()
        predicted = torch.stack([self._spans(length) for _ in range(rows)])
        special = [
            self.tokenizer.get_special_tokens_mask(row, already_has_special_tokens=True) for row in labels.tolist()
        ]
        functional = torch.tensor(special, dtype=torch.bool)
        if self.tokenizer.pad_token_id is not None:
            functional |= labels == self.tokenizer.pad_token_id
        predicted &= ~functional
        inputs[predicted] = self.tokenizer.mask_token_id
        labels[~predicted] = _IGNORED
        masks = [self._hidden_pairs(predicted[row], functional[row]) for row in range(rows)]
        target_mapping = torch.eye(length).expand(rows, length, length).clone()
        return inputs.long(), torch.stack(masks), target_mapping, labels.long()

    def _spans(self, length: int) -> torch.Tensor:
        chosen = torch.zeros(length, dtype=torch.bool)
        place = 0
        while place < length:
            span = int(torch.randint(1, self.max_span_length + 1, (1,)))
            surroundings = int(span / self.plm_probability)
            start = place + int(torch.randint(surroundings - span + 1, (1,)))
            chosen[start : start + span] = True
            place += surroundings
        return chosen

    def _hidden_pairs(self, predicted: torch.Tensor, functional: torch.Tensor) -> torch.Tensor:
        """1 at [i, j] where token i may not attend to token j."""
        half = len(predicted) // 2
        # Both halves follow the same drawn order and never cross: the second is computed on the memory of the first.
        order = torch.arange(2 * half).reshape(2, half)[:, torch.randperm(half)].flatten()
        # Plain context comes first of all, so everyone sees it and it sees no predicted token.
        order = order.masked_fill(~predicted & ~functional, -1)
        return ((order[:, None] <= order[None, :]) & predicted).float()


def pad_rows(rows: list[Any], tokenizer: Any, pad_to_multiple_of: int | None = None) -> torch.Tensor:
    """One tensor from rows of token ids, padded on the tokenizer's side."""
    tensors = [row if isinstance(row, torch.Tensor) else torch.tensor(row, dtype=torch.long) for row in rows]
    lengths = [len(row) for row in tensors]
    length = round_up(max(lengths), pad_to_multiple_of)
    if min(lengths) == length:
        return torch.stack(tensors)
    if tokenizer.pad_token_id is None:
        raise ValueError(
            f"the samples differ in length and the tokenizer {type(tokenizer).__name__} has no pad token; "
            "set tokenizer.pad_token, for example to tokenizer.eos_token"
        )
    padded = tensors[0].new_full((len(tensors), length), tokenizer.pad_token_id)
    for target, row in zip(padded, tensors, strict=True):
        place = slice(len(row)) if tokenizer.padding_side == "right" else slice(length - len(row), length)
        target[place] = row
    return padded


def _word_starts(offsets: np.ndarray, is_special: np.ndarray) -> np.ndarray:
    """A token starts a word where there is a gap to the token before it, or that one was special."""
    gap = np.ones(is_special.shape, dtype=bool)
    gap[:, 1:] = (offsets[:, 1:, 0] != offsets[:, :-1, 1]) | is_special[:, :-1]
    return gap & ~is_special


def _whole_words(words: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    """Extend what is hidden to every token of the same word."""
    result = np.zeros_like(hidden)
    for row, (word_of, chosen) in enumerate(zip(words, hidden, strict=True)):
        result[row] = np.isin(word_of, word_of[chosen]) & (word_of >= 0)
    return result
