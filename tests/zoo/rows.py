"""Rows for the catalogue: a few samples of each task, with target counts that differ where the task allows it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Row = dict[str, Any]
VOCABULARY = 32
LENGTH = 10


def generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ids(count: int, length: int = LENGTH, seed: int = 5) -> Tensor:
    return torch.randint(3, VOCABULARY, (count, length), generator=generator(seed))


def mask_of(index: int, length: int = LENGTH) -> Tensor:
    """Rows of different length: 10, 7, 4, 9, ..."""
    return (torch.arange(length) < length - 3 * index % 7).long()


def classified(count: int) -> list[Row]:
    tokens = ids(count)
    return [
        {"input_ids": tokens[i] * mask_of(i), "attention_mask": mask_of(i), "labels": torch.tensor(i % 3)}
        for i in range(count)
    ]


def tagged(count: int) -> list[Row]:
    return [
        {**row, "labels": torch.where(row["attention_mask"] > 0, row["input_ids"] % 3, -100)}
        for row in classified(count)
    ]


def spoken(count: int) -> list[Row]:
    """Language modelling: labels are the tokens, ignored on the padding and, every other row, on position 0."""
    rows = []
    for i, row in enumerate(classified(count)):
        labels = torch.where(row["attention_mask"] > 0, row["input_ids"], -100)
        if i % 2:
            labels[0] = -100
        rows.append({**row, "labels": labels})
    return rows


def unmasked(count: int) -> list[Row]:
    """As ``spoken``, for models that take no attention mask."""
    return [{name: value for name, value in row.items() if name != "attention_mask"} for row in spoken(count)]


def masked(count: int) -> list[Row]:
    """A few positions to be guessed, another number in each row."""
    rows = []
    for i, row in enumerate(classified(count)):
        chosen = (torch.arange(LENGTH) % (2 + i % 3) == 0) & (row["attention_mask"] > 0)
        rows.append({**row, "labels": torch.where(chosen, row["input_ids"], -100)})
    return rows


def questions(count: int) -> list[Row]:
    rows = classified(count)
    for i, row in enumerate(rows):
        del row["labels"]
        row |= {"start_positions": torch.tensor(i % 3), "end_positions": torch.tensor(1 + i % 3)}
    return rows


def choices(count: int) -> list[Row]:
    tokens = torch.randint(3, VOCABULARY, (count, 2, LENGTH), generator=generator())
    ones = torch.ones(2, LENGTH, dtype=torch.long)
    return [{"input_ids": tokens[i], "attention_mask": ones, "labels": torch.tensor(i % 2)} for i in range(count)]


def translated(count: int) -> list[Row]:
    rows = classified(count)
    for i, row in enumerate(rows):
        target = ids(count, 8, seed=6)[i]
        row["labels"] = torch.where(mask_of(i + 1, 8) > 0, target, -100)
    return rows


def pictures(count: int, size: int = 16) -> list[Row]:
    pixels = torch.randn(count, 3, size, size, generator=generator())
    return [{"pixel_values": pixels[i], "labels": torch.tensor(i % 3)} for i in range(count)]


def segmented(count: int) -> list[Row]:
    rows = pictures(count, 32)
    for i, row in enumerate(rows):
        labels = torch.randint(0, 3, (32, 32), generator=generator(i))
        labels[: 5 * i] = 255
        row["labels"] = labels
    return rows


def sounds(count: int) -> list[Row]:
    wave = torch.randn(count, 400, generator=generator())
    return [{"input_values": wave[i], "labels": torch.tensor(i % 3)} for i in range(count)]


def transcribed(count: int) -> list[Row]:
    rows = sounds(count)
    for i, row in enumerate(rows):
        row["labels"] = torch.where(mask_of(i + 1, 8) > 0, ids(count, 8)[i], -100)
    return rows


def heard(count: int) -> list[Row]:
    features = torch.randn(count, 8, 20, generator=generator())
    return [{"input_features": features[i], "labels": row["labels"]} for i, row in enumerate(translated(count))]


def captioned(count: int) -> list[Row]:
    """Four places of each text belong to the picture's patches and are no targets."""
    rows = spoken(count)
    pixels = torch.randn(count, 3, 16, 16, generator=generator())
    for i, row in enumerate(rows):
        row["pixel_values"] = pixels[i]
        row["input_ids"][:4] = VOCABULARY - 1
        row["attention_mask"][:4] = 1
        row["labels"][:4] = -100
    return rows


def paired(count: int) -> list[Row]:
    rows = classified(count)
    pixels = torch.randn(count, 3, 16, 16, generator=generator())
    for i, row in enumerate(rows):
        row["pixel_values"] = pixels[i]
        del row["labels"]
    return rows


def with_return_loss(features: list[Any]) -> dict[str, Any]:
    """CLIP's collator, as in transformers' example script."""
    return {key: torch.stack([row[key] for row in features]) for key in features[0]} | {"return_loss": True}
