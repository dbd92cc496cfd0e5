"""Metrics of the tasks, on numpy arrays."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_LESS_IS_BETTER = tuple("loss perplexity error errors rmse mse mae wer cer ece disagreement".split())  # noqa: SIM905


def less_is_better(name: str) -> bool:
    """Whether a metric of that name is better where it is less.

    >>> less_is_better("eval_rmse"), less_is_better("word_errors"), less_is_better("accuracy")
    (True, True, False)
    """
    return name.endswith(_LESS_IS_BETTER)


Metrics = Callable[[Any], dict[str, float]]


def classification(prediction: Any) -> dict[str, float]:
    """Share of right answers, and F1 averaged over the classes that occur."""
    logits = prediction.predictions[0] if isinstance(prediction.predictions, tuple) else prediction.predictions
    chosen, right = np.asarray(logits).argmax(-1), np.asarray(prediction.label_ids)
    scores = []
    for label in np.union1d(chosen, right):
        hits = float(np.sum((chosen == label) & (right == label)))
        scores.append(2 * hits / float(np.sum(chosen == label) + np.sum(right == label)))
    return {"accuracy": float(np.mean(chosen == right)), "f1": float(np.mean(scores))}


def regression(mean: float = 0.0, scale: float = 1.0) -> Metrics:
    """Errors in the target's own unit; ``mean`` and ``scale`` undo what training was given."""

    def measure(prediction: Any) -> dict[str, float]:
        logits = prediction.predictions[0] if isinstance(prediction.predictions, tuple) else prediction.predictions
        error = (
            np.asarray(logits, dtype=np.float64).reshape(-1) - np.asarray(prediction.label_ids).reshape(-1)
        ) * scale
        spread = float(np.var(np.asarray(prediction.label_ids, dtype=np.float64) * scale))
        squared = float(np.mean(error**2))
        measured = {"rmse": math.sqrt(squared), "mae": float(np.mean(np.abs(error)))}
        # All targets alike: there is nothing to explain.
        return measured if spread == 0 else {**measured, "r2": 1 - squared / spread}

    return measure


def perplexity(prediction: Any) -> dict[str, float]:
    """Between how many tokens the model is in doubt; predictions are losses of tokens, NaN where there is none."""
    losses = np.asarray(prediction.predictions, dtype=np.float64)
    return {"perplexity": float(np.exp(min(700.0, np.nanmean(losses))))}


def generation(tokenizer: Any) -> Metrics:
    """Share of outputs that are exactly right, and F1 of their words."""

    def measure(prediction: Any) -> dict[str, float]:
        written = decoded(tokenizer, prediction.predictions)
        wanted = decoded(tokenizer, prediction.label_ids)
        exact = [one == other for one, other in zip(written, wanted, strict=True)]
        overlap = [_word_f1(one, other) for one, other in zip(written, wanted, strict=True)]
        return {"exact_match": float(np.mean(exact)), "word_f1": float(np.mean(overlap))}

    return measure


def errors(written: list[str], wanted: list[str]) -> dict[str, float]:
    """Words, and letters, that would have to be changed, added or removed, as shares of those that were wanted."""
    pairs = list(zip(written, wanted, strict=True))
    words = sum(edits(one.split(), other.split()) for one, other in pairs)
    letters = sum(edits(one, other) for one, other in pairs)
    return {
        "word_errors": words / max(1, sum(len(other.split()) for other in wanted)),
        "letter_errors": letters / max(1, sum(map(len, wanted))),
    }


def edits(one: Sequence[Any], other: Sequence[Any]) -> int:
    """The fewest changes, additions and removals that make ``other`` of ``one``."""
    before = list(range(len(other) + 1))
    for row, item in enumerate(one, 1):
        now = [row]
        for place, wanted in enumerate(other, 1):
            now.append(min(before[place] + 1, now[-1] + 1, before[place - 1] + (item != wanted)))
        before = now
    return before[-1]


def decoded(tokenizer: Any, tokens: Any) -> list[str]:
    """Token numbers as text; -100 stands for nothing."""
    tokens = tokens[0] if isinstance(tokens, tuple) else tokens
    known = np.where(np.asarray(tokens) < 0, tokenizer.pad_token_id, tokens)
    return [text.strip() for text in tokenizer.batch_decode(known, skip_special_tokens=True)]


def _word_f1(written: str, wanted: str) -> float:
    one, other = Counter(written.split()), Counter(wanted.split())
    shared = sum((one & other).values())
    total = sum(one.values()) + sum(other.values())
    return 2 * shared / total if total else 1.0
