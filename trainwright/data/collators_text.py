"""Collators that pad with a tokenizer: classification, token classification, sequence to sequence, multiple choice.

The tokenizer is whatever has ``pad``; Hugging Face's do, and so do their feature extractors and processors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


def pad_with(tokenizer: Any, features: Any, **options: Any) -> Any:
    """``tokenizer.pad`` without its advice to tokenize and pad in one call, which a collator cannot follow."""
    advice_given = getattr(tokenizer, "deprecation_warnings", None)
    if advice_given is None:
        return tokenizer.pad(features, **options)
    name = "Asking-to-pad-a-fast-tokenizer"
    before = advice_given.get(name, False)
    advice_given[name] = True
    try:
        return tokenizer.pad(features, **options)
    finally:
        advice_given[name] = before


def to_list(values: Any) -> list[Any]:
    return values.tolist() if hasattr(values, "tolist") else list(values)


def round_up(length: int, multiple: int | None) -> int:
    return length if not multiple else -(-length // multiple) * multiple


class FrameworkCall:
    """``collator(features, return_tensors=None)`` for collators that define ``torch_call`` and ``numpy_call``."""

    return_tensors: str

    def __call__(self, features: list[Any], return_tensors: str | None = None) -> Any:
        wanted = return_tensors or self.return_tensors
        if wanted == "pt":
            return self.torch_call(features)
        if wanted == "np":
            return self.numpy_call(features)
        raise ValueError(f"return_tensors must be 'pt' or 'np', got {wanted!r}")

    def torch_call(self, features: list[Any]) -> Any:
        raise NotImplementedError

    def numpy_call(self, features: list[Any]) -> Any:
        raise NotImplementedError(f"{type(self).__name__} makes torch tensors only; use return_tensors='pt'")


@dataclass
class DataCollatorWithPadding:
    """Pads the samples of a batch to one length; ``label`` and ``label_ids`` become ``labels``."""

    tokenizer: Any
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"

    def __call__(self, features: list[dict[str, Any]]) -> Any:
        batch = pad_with(
            self.tokenizer,
            features,
            padding=self.padding,
            max_length=self.max_length,
            pad_to_multiple_of=self.pad_to_multiple_of,
            return_tensors=self.return_tensors,
        )
        for name in ("label", "label_ids"):
            if name in batch:
                batch["labels"] = batch[name]
                del batch[name]
        return batch


def _without(features: list[Any], name: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in feature.items() if key != name} for feature in features]


def _label_name(feature: Any) -> str:
    return "label" if "label" in feature else "labels"


def _padded_row(row: list[Any], length: int, fill: int, side: str) -> list[Any]:
    filling = [fill] * (length - len(row))
    return row + filling if side == "right" else filling + row


@dataclass
class DataCollatorForTokenClassification(FrameworkCall):
    """Pads the inputs with the tokenizer and the labels, one for each token, with ``label_pad_token_id``."""

    tokenizer: Any
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = -100
    return_tensors: str = "pt"

    def torch_call(self, features: list[Any]) -> Any:
        batch, name, rows = self._padded(features, "pt")
        if rows is not None:
            batch[name] = torch.tensor(rows, dtype=torch.int64)
        return batch

    def numpy_call(self, features: list[Any]) -> Any:
        batch, name, rows = self._padded(features, "np")
        if rows is not None:
            batch[name] = np.array(rows, dtype=np.int64)
        return batch

    def _padded(self, features: list[Any], framework: str) -> tuple[Any, str, list[list[Any]] | None]:
        name = _label_name(features[0])
        batch = pad_with(
            self.tokenizer,
            _without(features, name),
            padding=self.padding,
            max_length=self.max_length,
            pad_to_multiple_of=self.pad_to_multiple_of,
            return_tensors=framework,
        )
        if name not in features[0]:
            return batch, name, None
        length, side = batch["input_ids"].shape[1], self.tokenizer.padding_side
        rows = [_padded_row(to_list(f[name]), length, self.label_pad_token_id, side) for f in features]
        return batch, name, rows


@dataclass
class DataCollatorForSeq2Seq:
    """Pads inputs with the tokenizer and labels with ``label_pad_token_id``, each to their own longest.

    A ``model`` that can make ``decoder_input_ids`` from labels is asked to, so that label smoothing, which takes the
    labels away from the model, leaves it something to decode.
    """

    tokenizer: Any
    model: Any | None = None
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = -100
    return_tensors: str = "pt"

    def __call__(self, features: list[Any], return_tensors: str | None = None) -> Any:
        framework = return_tensors or self.return_tensors
        name = _label_name(features[0])
        labels = [feature[name] for feature in features] if name in features[0] else None
        if labels is not None and all(label is None for label in labels):
            labels = None
        batch = pad_with(
            self.tokenizer,
            _without(features, name),
            padding=self.padding,
            max_length=self.max_length,
            pad_to_multiple_of=self.pad_to_multiple_of,
            return_tensors=framework,
        )
        if labels is None:
            batch["labels"] = None
            return batch
        rows = self._label_rows([to_list(label) for label in labels])
        if framework == "pt":
            batch["labels"] = torch.tensor(rows, dtype=torch.int64)
        else:
            batch["labels"] = np.array(rows, dtype=np.int64)
        if self.model is not None and hasattr(self.model, "prepare_decoder_input_ids_from_labels"):
            batch["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
        return batch

    def _label_rows(self, labels: list[list[int]]) -> list[list[int]]:
        # `padding` may be an enum of transformers whose members equal these strings.
        if self.padding is False or self.padding == "do_not_pad":
            return labels
        if self.padding == "max_length" and self.max_length is not None:
            longest = self.max_length
        else:
            longest = max(len(label) for label in labels)
        length = round_up(longest, self.pad_to_multiple_of)
        return [_padded_row(row, length, self.label_pad_token_id, self.tokenizer.padding_side) for row in labels]


@dataclass
class DataCollatorForMultipleChoice(FrameworkCall):
    """Pads all choices of all samples to one length: tensors of (samples, choices, length)."""

    tokenizer: Any
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"

    def torch_call(self, features: list[Any]) -> dict[str, Any]:
        name = _label_name(features[0])
        choices = len(features[0]["input_ids"])
        flat = [
            {key: values[choice] for key, values in feature.items()}
            for feature in _without(features, name)
            for choice in range(choices)
        ]
        padded = pad_with(
            self.tokenizer,
            flat,
            padding=self.padding,
            max_length=self.max_length,
            pad_to_multiple_of=self.pad_to_multiple_of,
            return_tensors="pt",
        )
        batch = {key: value.view(len(features), choices, -1) for key, value in padded.items()}
        batch["labels"] = torch.tensor([feature[name] for feature in features], dtype=torch.int64)
        return batch
