"""Inputs that a layer cannot take: which layer, what it expects, and what it got."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from trainwright.training.first_step.scene import Scene, listed, shape_of

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def explain_layer(scene: Scene) -> str | None:
    """A known layer with an input of another shape, type or range than it was made for."""
    found = scene.layer()
    long_text = _too_long(scene)
    if found is None:
        return long_text
    name, module, variables = found
    given = variables.get("input", variables.get("x"))
    if not isinstance(given, Tensor):
        return long_text
    called = f"the layer {name!r} ({type(module).__name__})" if name else f"the model ({type(module).__name__})"
    wrong = _wrong_for(module, given)
    if wrong is None and scene.setup.engine.precision.dtype is None:
        # Mixed precision converts by itself.
        wrong = _wrong_type(module, given)
    if wrong is None:
        return long_text
    expected, advice = wrong
    kind = str(given.dtype).removeprefix("torch.")
    return f"{called[0].upper()}{called[1:]} expects {expected}, and got shape {shape_of(given)} of {kind}: {advice}."


def note_on(scene: Scene) -> str | None:
    """Where in the model an error was raised that nobody can explain; for a note on it."""
    found = scene.layer()
    if found is None:
        return None
    name, module, variables = found
    shapes = [f"{key} {shape_of(value)}" for key, value in variables.items() if isinstance(value, Tensor)]
    where = f"the layer {name!r}" if name else "the model itself"
    kind = type(module).__name__
    return f"trainwright: in the forward of {where} ({kind}), in the first step, with {listed(shapes, 6)}."


def _wrong_for(module: nn.Module, given: Tensor) -> tuple[str, str] | None:
    """(what it expects, what to do about it), where ``given`` is not that."""
    if isinstance(module, nn.Embedding):
        return _wrong_for_embedding(module, given)
    if isinstance(module, nn.Linear) and _last(given) != module.in_features:
        advice = f"give it {_last(given)} in_features, or change what comes before it"
        return f"inputs whose last dimension is {module.in_features}", advice
    if isinstance(module, _CONVOLUTIONS) and (text := _wrong_for_convolution(module, given)):
        return text
    if isinstance(module, nn.LayerNorm) and tuple(given.shape[-len(module.normalized_shape) :]) != tuple(
        module.normalized_shape
    ):
        shape = tuple(module.normalized_shape)
        return f"inputs whose last dimensions are {shape}", "change normalized_shape, or what comes before it"
    if isinstance(module, nn.RNNBase) and _last(given) != module.input_size:
        return f"inputs whose last dimension is {module.input_size}", f"give it input_size={_last(given)}"
    if isinstance(module, _BATCH_NORMS) and given.ndim > 1 and given.shape[1] != module.num_features:
        return f"{module.num_features} channels in dimension 1", f"give it {given.shape[1]} num_features"
    if isinstance(module, _BATCH_NORMS) and given.ndim > 1 and given.numel() == given.shape[1]:
        return "more than one value per channel to normalize by", "take batches of 2 or more, or eval mode"
    return None


def _wrong_type(module: nn.Module, given: Tensor) -> tuple[str, str] | None:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dtype == given.dtype:
        return None
    kind = str(weight.dtype).removeprefix("torch.")
    return f"inputs of {kind}", f"convert them in the dataset, as in torch.tensor(x, dtype=torch.{kind})"


def _wrong_for_convolution(module: Any, given: Tensor) -> tuple[str, str] | None:
    space = len(module.kernel_size)
    dimensions = f"(batch, {module.in_channels} channels, {', '.join(('depth', 'height', 'width')[3 - space :])})"
    if given.ndim not in (space + 1, space + 2):
        return (
            f"inputs of {space + 2} dimensions {dimensions}",
            "add or remove dimensions (unsqueeze, flatten)",
        )
    if given.shape[-space - 1] == module.in_channels:
        return None
    if given.shape[-1] == module.in_channels:
        return f"inputs {dimensions}", "channels come first in torch; permute the dimensions in the dataset"
    return f"inputs {dimensions}", f"give it {given.shape[-space - 1]} in_channels, or other images"


def _wrong_for_embedding(module: nn.Embedding, given: Tensor) -> tuple[str, str] | None:
    if given.is_floating_point():
        return "whole numbers (int64), the rows to look up", "convert them with .long(), or use another layer"
    if given.is_cpu and given.numel() and not 0 <= int(given.min()) <= int(given.max()) < module.num_embeddings:
        wrong = (given < 0) | (given >= module.num_embeddings)
        place = wrong.nonzero()[0].tolist()
        where = f"sample {place[0]}" + (f", position {', '.join(map(str, place[1:]))}" if place[1:] else "")
        return (
            f"numbers from 0 to {module.num_embeddings - 1} (it has {module.num_embeddings} rows)",
            f"{where} holds {int(given[tuple(place)])}; tokenizer and model may not belong together, or call "
            "model.resize_token_embeddings(len(tokenizer))",
        )
    return None


def _too_long(scene: Scene) -> str | None:
    """Texts longer than the positions that a model of transformers has, or with tokens that it does not know."""
    config = getattr(scene.network, "config", None)
    positions, words = getattr(config, "max_position_embeddings", None), getattr(config, "vocab_size", None)
    for batch in scene.batches:
        tokens = batch.get("input_ids") if hasattr(batch, "get") else None
        if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.is_floating_point():
            continue
        if isinstance(positions, int) and 0 < positions < tokens.shape[1]:
            return (
                f"The texts of the first batch have {tokens.shape[1]} tokens, and the model has positions for "
                f"{positions}: shorten them, as in tokenizer(text, truncation=True, max_length={positions})."
            )
        if isinstance(words, int) and tokens.is_cpu and tokens.numel() and int(tokens.max()) >= words > 0:
            return (
                f"Token {int(tokens.max())} of the first batch is out of range: the model knows {words} tokens. "
                "Tokenizer and model may not belong together, or call model.resize_token_embeddings(len(tokenizer))."
            )
    return None


def _last(given: Tensor) -> int:
    return int(given.shape[-1]) if given.ndim else 0


#: What torch's own layers raise where an input does not fit; whatever else is raised is somebody's own word.
RAISED_BY_TORCH = (RuntimeError, IndexError, ValueError, TypeError, AttributeError)
