"""What a model says of one sample, as a person reads it: text that it writes, a class, or a number."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainwright.core.data_words import DataWords
from trainwright.engines.torch.losses import logits_of
from trainwright.engines.torch.targets import IGNORED, base_model
from trainwright.trackers.pictures import png

_LABELS = ("labels", "label", "label_ids")
_SOUND = ("input_values", "input_features")
_LONGEST_TEXT, _WIDEST_IMAGE, _FEW_NUMBERS = 2000, 64, 8


class CannotShow(ValueError):
    """The model answers in a form that has no short one."""


def answer(
    model: nn.Module, batch: Any, row: Any, processor: Any, words: DataWords, max_new_tokens: int
) -> dict[str, Any]:
    """``kind``, ``input``, ``label``, ``prediction`` and ``probability`` of a batch of one sample."""
    inputs, labels = _without_labels(batch)
    inner = base_model(model)
    names = list(words.classes) or _names_of(inner)
    shown, is_image = _shown_input(inputs, row, processor, words)
    if _writes(inner) and isinstance(labels, Tensor) and labels.ndim == 2:
        return _written(inner, inputs, labels, shown, processor, max_new_tokens)
    outputs = model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)
    logits = logits_of(outputs).detach().float().cpu()
    found = _judged(logits, labels, names, getattr(inner, "config", None), processor)
    if found["kind"] == "number":
        found |= {name: _amount(found[name], words) for name in ("label", "prediction")}
    if is_image and found["kind"] == "class":
        found["kind"] = "image"
    return {"kind": found.pop("kind"), "input": shown, **found}


def _without_labels(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, Mapping):
        labels = next((batch[name] for name in _LABELS if name in batch), None)
        return {name: value for name, value in batch.items() if name not in _LABELS}, labels
    if isinstance(batch, (tuple, list)) and len(batch) > 1:
        return list(batch[:-1]), batch[-1]
    return [batch], None


# ---- text


def _writes(model: nn.Module) -> bool:
    can = getattr(model, "can_generate", None)
    return callable(getattr(model, "generate", None)) and (not callable(can) or bool(can()))


def _written(
    model: Any, inputs: dict[str, Tensor], labels: Tensor, shown: Any, processor: Any, most: int
) -> dict[str, Any]:
    """What the model writes after the sample's prompt: the tokens before its first target, or the first half."""
    targets = labels[0]
    options = {"max_new_tokens": most, "do_sample": False, "num_beams": 1}
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False) or "input_ids" not in inputs:
        kept = {name: value for name, value in inputs.items() if not name.startswith("decoder_")}
        written = model.generate(**kept, **options)[0]
        return _as_text(shown, decoded(targets[targets != IGNORED], processor), decoded(written, processor))
    ids, mask = inputs["input_ids"][0], inputs.get("attention_mask")
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask[0].bool()
    ids, targets = ids[real], targets[real]
    first = int((targets != IGNORED).nonzero()[0]) if bool((targets != IGNORED).any()) else len(ids)
    prompt = first if first > 1 else max(1, len(ids) // 2)
    kept = {name: inputs[name] for name in ("pixel_values", "input_features") if name in inputs}
    beginning = ids[:prompt][None]
    written = model.generate(input_ids=beginning, attention_mask=torch.ones_like(beginning), **kept, **options)[0]
    return _as_text(
        decoded(ids[:prompt], processor), decoded(ids[prompt:], processor), decoded(written[prompt:], processor)
    )


def _as_text(shown: Any, label: str, prediction: str) -> dict[str, Any]:
    return {"kind": "text", "input": shown, "label": label, "prediction": prediction, "probability": None}


def decoded(ids: Tensor, processor: Any) -> str:
    """Text of tokens; their numbers where there is no tokenizer."""
    tokenizer = getattr(processor, "tokenizer", processor)
    numbers = ids.tolist()
    decode = getattr(tokenizer, "decode", None)
    text = decode(numbers, skip_special_tokens=True) if callable(decode) else " ".join(map(str, numbers))
    return str(text)[:_LONGEST_TEXT]


# ---- classes and numbers


def _names_of(model: Any) -> list[str] | None:
    named = getattr(getattr(model, "config", None), "id2label", None)
    if not isinstance(named, Mapping) or not named:
        return None
    return [str(named.get(place, place)) for place in range(max(map(int, named)) + 1)]


def _judged(logits: Tensor, labels: Any, names: list[str] | None, config: Any, processor: Any) -> dict[str, Any]:
    label = labels[0].cpu() if isinstance(labels, Tensor) and labels.ndim else None
    first = logits[0]
    is_real = label is not None and label.is_floating_point()
    if getattr(config, "problem_type", None) == "multi_label_classification":
        chosen = [_name(place, names) for place in (first > 0).nonzero().flatten().tolist()]
        true = None if label is None else [_name(place, names) for place in label.nonzero().flatten().tolist()]
        said = None if true is None else ", ".join(true)
        return {"kind": "class", "label": said, "prediction": ", ".join(chosen), "probability": None}
    if is_real or first.numel() == 1:
        true = None if label is None else _number(label)
        return {"kind": "number", "label": true, "prediction": _number(first), "probability": None}
    if first.ndim == 1:
        shares = first.softmax(-1)
        best = int(shares.argmax())
        true = None if label is None or label.numel() != 1 or int(label) == IGNORED else _name(int(label), names)
        return {"kind": "class", "label": true, "prediction": _name(best, names), "probability": float(shares[best])}
    if first.ndim == 2 and label is not None and label.shape == first.shape[:1]:
        places = label != IGNORED
        guessed, true = first.argmax(-1)[places], label[places]
        if names is not None and first.shape[-1] == len(names):
            words = [" ".join(_name(one, names) for one in ids.tolist()) for ids in (true, guessed)]
        else:
            words = [decoded(ids, processor) for ids in (true, guessed)]
        return {"kind": "text", "label": words[0], "prediction": words[1], "probability": None}
    raise CannotShow(f"outputs of shape {tuple(logits.shape)} have no short form")


def _name(place: int, names: list[str] | None) -> str:
    return names[place] if names is not None and 0 <= place < len(names) else str(place)


def _amount(value: Any, words: DataWords) -> Any:
    if isinstance(value, list):
        return [words.amount(one) for one in value]
    return None if value is None else words.amount(value)


def _number(values: Tensor) -> float | list[float]:
    flat = values.flatten()[:_FEW_NUMBERS].tolist()
    return float(flat[0]) if len(flat) == 1 else [float(one) for one in flat]


# ---- inputs


def _shown_input(inputs: Any, row: Any, processor: Any, words: DataWords) -> tuple[Any, bool]:
    """The input for people, and whether it is a picture (a small PNG as base64)."""
    named = inputs if isinstance(inputs, Mapping) else {str(place): value for place, value in enumerate(inputs)}
    if isinstance(ids := named.get("input_ids"), Tensor):
        mask = named.get("attention_mask")
        return decoded(ids[0] if mask is None else ids[0][mask[0].bool()], processor), False
    for name in _SOUND:
        if isinstance(sound := named.get(name), Tensor):
            return f"{_file_of(row)}{tuple(sound.shape[1:])} numbers", False
    tensors = [value[0].detach().cpu() for value in named.values() if isinstance(value, Tensor) and value.ndim]
    if not tensors:
        return None, False
    if (picture := _picture(tensors[0])) is not None:
        return picture, True
    flat = tensors[0].flatten()
    if known := words.row(flat.tolist()) if words.columns else "":
        return known, False
    text = ", ".join(f"{float(one):.4g}" for one in flat[:_FEW_NUMBERS])
    return text + (f", ... ({len(flat)} numbers)" if len(flat) > _FEW_NUMBERS else ""), False


def _file_of(row: Any) -> str:
    audio = row.get("audio") if isinstance(row, Mapping) else None
    places = (audio, row) if isinstance(audio, Mapping) else (row,)
    for place in places:
        for name in ("path", "file"):
            if isinstance(place, Mapping) and isinstance(place.get(name), str):
                return f"{place[name]}: "
    return ""


def _picture(tensor: Tensor) -> str | None:
    if tensor.ndim != 3 or tensor.shape[0] not in (1, 3) or min(tensor.shape[1:]) < 4:
        return None
    step = max(1, -(-max(tensor.shape[1:]) // _WIDEST_IMAGE))
    pixels = tensor[:, ::step, ::step].float().nan_to_num(0.0).permute(1, 2, 0).numpy()
    low, high = float(pixels.min()), float(pixels.max())
    scaled = (pixels - low) / (high - low) if high > low else np.zeros_like(pixels)
    return base64.b64encode(png((scaled * 255).astype(np.uint8))).decode("ascii")
