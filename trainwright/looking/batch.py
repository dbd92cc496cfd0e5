"""``trainer.show_batch()``: the first training batch as the model sees it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainwright.core.data_words import DataWords
from trainwright.engines.torch.targets import base_model, count_rows
from trainwright.looking.first_batch import first_batch
from trainwright.looking.pages import batch_page
from trainwright.looking.words import shown
from trainwright.training.setup import Setup

#: What a label of a token says that is not trained.
_IGNORED = -100
_LABELS = ("labels", "label", "label_ids")
#: Numbers of a row that are shown.
_FEW = 12


@dataclasses.dataclass(frozen=True)
class Field:
    """One tensor of the batch."""

    name: str
    shape: list[int]
    dtype: str
    least: float | None = None
    greatest: float | None = None
    #: Share of entries that are not trained (-100), of labels.
    ignored: float | None = None

    def line(self) -> str:
        """For people."""
        found = f"{self.name:<16} {'x'.join(map(str, self.shape)) or 'one'} {self.dtype}"
        if self.least is not None and self.greatest is not None:
            found += f", {self.least:.4g} to {self.greatest:.4g}"
        return found + (f", {self.ignored:.0%} not trained (-100)" if self.ignored else "")


@dataclasses.dataclass(frozen=True)
class Part:
    """A stretch of a row's text."""

    text: str
    is_trained: bool


@dataclasses.dataclass(frozen=True)
class Row:
    """One sample: what of it can be shown in words."""

    text: list[Part] = dataclasses.field(default_factory=list)
    #: What is to be predicted: a class, a number, another text.
    label: str | None = None
    #: Numbers, where it is no text.
    values: dict[str, list[float]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class BatchView:
    """A batch that can be printed, and shown in a notebook.

    ``fields`` are its tensors, ``rows`` its first samples in words, ``images`` those of them that are pictures.
    """

    fields: list[Field]
    rows: list[Row]
    samples: int
    #: Numbers from 0 to 1, height x width x channels.
    images: list[Any] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"The first batch: {self.samples} sample{'' if self.samples == 1 else 's'}"]
        lines += [f"  {shown(field.line(), 200)}" for field in self.fields]
        if any(part.is_trained for row in self.rows for part in row.text):
            lines.append("  what is trained stands in «»")
        for number, row in enumerate(self.rows):
            lines.append(f"  {number:>3}  {_in_words(row)}")
        if self.samples > len(self.rows):
            lines.append(f"       and {self.samples - len(self.rows)} more")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        return batch_page(self)

    def as_dict(self) -> dict[str, Any]:
        """All of it but the pictures, in plain values."""
        return {
            "samples": self.samples,
            "fields": [dataclasses.asdict(field) for field in self.fields],
            "rows": [dataclasses.asdict(row) for row in self.rows],
            "notes": self.notes,
        }


def show_batch(setup: Setup, rows: int = 8, tokenizer: Any = None) -> BatchView:
    """The first training batch, read without taking it from the training; see ``Trainer.show_batch``.

    ``tokenizer`` decodes texts where the Trainer has none.
    """
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise ValueError(f"rows={rows!r} must be a number of samples, at least 1.")
    batch = first_batch(setup)
    classes = getattr(getattr(base_model(setup.model), "config", None), "id2label", None)
    words = setup.data_words
    if not words.classes and isinstance(classes, dict) and all(number in classes for number in range(len(classes))):
        words = dataclasses.replace(words, classes=[str(classes[number]) for number in range(len(classes))])
    return view_of(batch, tokenizer or setup.processing_class, words, rows)


def view_of(batch: Any, processor: Any, words: DataWords, rows: int) -> BatchView:
    """What of ``batch`` can be shown."""
    named = _named(batch)
    samples = count_rows(batch)
    fields = [_field(name, value) for name, value in named.items() if isinstance(value, Tensor)]
    found = [_row(named, index, processor, words) for index in range(min(rows, samples))]
    notes = [f"{name}: {type(value).__name__}" for name, value in named.items() if not isinstance(value, Tensor)]
    tokens = named.get("input_ids")
    if isinstance(tokens, Tensor) and not callable(getattr(processor, "decode", None)):
        notes.append("Tokens are shown as numbers: pass processing_class= (the tokenizer) to read them as text.")
    return BatchView(fields, found, samples, _images(named, rows), notes)


def _named(batch: Any) -> dict[str, Any]:
    if isinstance(batch, Mapping) or hasattr(batch, "items"):
        return {str(name): value for name, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        names = {0: "inputs", len(batch) - 1: "labels"} if len(batch) == 2 else {}
        return {names.get(place, str(place)): value for place, value in enumerate(batch)}
    return {"inputs": batch}


def _field(name: str, value: Tensor) -> Field:
    least = greatest = ignored = None
    if value.numel() and not value.is_complex():
        known = value.detach()
        if name in _LABELS and not known.is_floating_point():
            left_out = known == _IGNORED
            ignored = float(left_out.float().mean())
            known = known[~left_out]
        if known.numel():
            least, greatest = (float(one) for one in torch.aminmax(known.float()))
    return Field(name, list(value.shape), str(value.dtype).removeprefix("torch."), least, greatest, ignored)


def _row(named: dict[str, Any], index: int, processor: Any, words: DataWords) -> Row:
    tokens = named.get("input_ids")
    labels = next((named[name] for name in _LABELS if isinstance(named.get(name), Tensor)), None)
    text: list[Part] = []
    is_aligned = labels is not None and isinstance(tokens, Tensor) and labels.shape == tokens.shape and tokens.ndim == 2
    if isinstance(tokens, Tensor) and tokens.ndim == 2:
        text = _parts(
            tokens[index], _mask(named, index), labels[index] if labels is not None and is_aligned else None, processor
        )
    values = {}
    for name, value in named.items():
        is_short = isinstance(value, Tensor) and 1 <= value.ndim <= 2 and name not in ("input_ids", *_LABELS)
        if is_short and value.is_floating_point() and len(value) > index:
            values[name] = [float(one) for one in value[index].reshape(-1)[:_FEW]]
            if words.columns and (known := words.row(value[index].reshape(-1).tolist())):
                text.append(Part(known, is_trained=False))
                del values[name]
    label = None if labels is None or is_aligned or len(labels) <= index else _label(labels[index], processor, words)
    return Row(text, label, values)


def _mask(named: dict[str, Any], index: int) -> Tensor | None:
    mask = named.get("attention_mask")
    return mask[index] if isinstance(mask, Tensor) and mask.ndim == 2 else None


def _parts(tokens: Tensor, mask: Tensor | None, labels: Tensor | None, processor: Any) -> list[Part]:
    """The tokens that are no padding, cut where training begins and ends."""
    seen = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.bool()
    if labels is not None:
        # A padding token that is trained (the end of a text, say) is to be seen.
        seen = seen | (labels != _IGNORED)
    trained = torch.zeros_like(seen) if labels is None else labels != _IGNORED
    parts: list[tuple[bool, list[int]]] = []
    for token, is_trained in zip(tokens[seen].tolist(), trained[seen].tolist(), strict=True):
        if not parts or parts[-1][0] != is_trained:
            parts.append((is_trained, []))
        parts[-1][1].append(token)
    return [Part(_decoded(numbers, processor), is_trained) for is_trained, numbers in parts]


def _decoded(tokens: list[int], processor: Any) -> str:
    decode = getattr(processor, "decode", None)
    return str(decode(tokens, skip_special_tokens=False)) if callable(decode) else " ".join(map(str, tokens))


def _label(value: Tensor, processor: Any, words: DataWords) -> str:
    if value.ndim == 0:
        if value.is_floating_point():
            return f"{words.amount(float(value)):.6g}"
        return words.class_name(int(value))
    if value.is_floating_point() or value.ndim > 1:
        return ", ".join(f"{float(one):.4g}" for one in value.reshape(-1)[:_FEW])
    return _decoded([token for token in value.tolist() if token != _IGNORED], processor)


def _images(named: dict[str, Any], rows: int) -> list[Any]:
    for value in named.values():
        if isinstance(value, Tensor) and value.ndim == 4 and value.shape[1] in (1, 3) and value.is_floating_point():
            found = value[:rows].detach().float().permute(0, 2, 3, 1)
            # As they are after every augmentation; only brightness is put to where it can be seen.
            least, greatest = found.amin((1, 2, 3), keepdim=True), found.amax((1, 2, 3), keepdim=True)
            return list(((found - least) / (greatest - least).clamp_min(1e-12)).numpy())
    return []


def _in_words(row: Row) -> str:
    parts = [f"«{shown(part.text)}»" if part.is_trained else shown(part.text) for part in row.text]
    words = [" ".join(parts)] if parts else []
    for name, numbers in row.values.items():
        more = ", …" if len(numbers) == _FEW else ""
        words.append(f"{shown(name, 40)} [{', '.join(f'{one:.4g}' for one in numbers)}{more}]")
    return "; ".join(words) + (f"  -> {shown(row.label)}" if row.label is not None else "")
