"""How many entities are found: runs of words with one type, written B-type I-type (or E-, S-)."""

from __future__ import annotations

from collections.abc import Sequence


def get_entities(seq: Sequence[str] | Sequence[Sequence[str]]) -> list[tuple[str, int, int]]:
    """(type, first word, last word) of each entity; an entity does not go on into the next of several sentences.

    >>> get_entities(["B-PER", "I-PER", "O", "B-LOC"])
    [('PER', 0, 1), ('LOC', 3, 3)]
    """
    labels: list[str] = []
    for part in seq:
        labels += [part] if isinstance(part, str) else [*part, "O"]
    found: list[tuple[str, int, int]] = []
    is_open = False
    for place, label in enumerate(labels):
        mark, kind = label[:1], label.rpartition("-")[2]
        if mark in ("O", ".") or not mark:
            is_open = False
            continue
        if is_open and mark not in ("B", "S") and found[-1][0] == kind:
            found[-1] = (kind, found[-1][1], place)
        else:
            found.append((kind, place, place))
        is_open = mark not in ("E", "S")
    return found


def precision_score(y_true: Sequence[str], y_pred: Sequence[str]) -> float:
    """Share of the entities said that are right."""
    said = set(get_entities(y_pred))
    return len(said & set(get_entities(y_true))) / len(said) if said else 0.0


def recall_score(y_true: Sequence[str], y_pred: Sequence[str]) -> float:
    """Share of the right entities that were said."""
    return precision_score(y_pred, y_true)


def f1_score(y_true: Sequence[str], y_pred: Sequence[str]) -> float:
    """The harmonic mean of both."""
    precision, recall = precision_score(y_true, y_pred), recall_score(y_true, y_pred)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def accuracy_score(y_true: Sequence[str], y_pred: Sequence[str]) -> float:
    """Share of the words whose label is right."""
    return sum(true == said for true, said in zip(y_true, y_pred, strict=True)) / len(y_true) if y_true else 0.0


def get_ner_seq_metric(y_true: Sequence[str], y_pred: Sequence[str]) -> dict[str, float]:
    """All four."""
    return {
        "sequence/precision": precision_score(y_true, y_pred),
        "sequence/recall": recall_score(y_true, y_pred),
        "sequence/f1": f1_score(y_true, y_pred),
        "sequence/accuracy": accuracy_score(y_true, y_pred),
    }
