"""Which layers are quantized, and by which scheme."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from trainwright.config.patterns import Pattern
from trainwright.config.registry import suggestion
from trainwright.config.warnings import warn
from trainwright.recipes.quantization.layers import form_for, why_not
from trainwright.recipes.quantization.legacy import Asked
from trainwright.recipes.quantization.schemes import Rule, Scheme
from trainwright.recipes.selecting import is_conv1d


def fits(name: str, layer: nn.Module, patterns: Iterable[str]) -> str | None:
    """The pattern that fits best: the longest name, then a type.

    A name stands for a layer and everything in it; ``re:pattern`` is matched from the start of the name.

    >>> fits("head.0", nn.Linear(1, 1), ["Linear", "head"]), fits("heads", nn.ReLU(), ["head"])
    ('head', None)
    """
    by_name = [pattern for pattern in patterns if _fits_name(name, pattern)]
    if by_name:
        return max(by_name, key=len)
    kinds = {cls.__name__ for cls in type(layer).__mro__}
    return next((pattern for pattern in patterns if pattern in kinds and pattern not in ("Module", "object")), None)


def _fits_name(name: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return Pattern(pattern.removeprefix("re:")).match(name)
    return name == pattern or name.startswith(f"{pattern}.")


def choose_layers(model: nn.Module, asked: Asked, *, strict: bool) -> dict[str, Scheme]:
    """Name of each layer to quantize -> its scheme."""
    if strict:
        named = {"ignore": asked.ignore, "scheme_overrides": asked.overrides, "targets": asked.targets or []}
        for what, patterns in named.items():
            _refuse_strangers(model, what, patterns)
    schemes = {**asked.by_kind, **asked.overrides}
    chosen: dict[str, Scheme] = {}
    for name, layer in model.named_modules():
        if form_for(layer) is None or fits(name, layer, asked.ignore) is not None:
            continue
        if asked.targets is not None and fits(name, layer, asked.targets) is None:
            continue
        override = fits(name, layer, schemes)
        own = asked.scheme if override is None else schemes[override]
        if not own or _is_left_alone(name, layer):
            continue
        _refuse_odd_groups(name, layer, own.weights)
        chosen[name] = own
    if not chosen:
        raise ValueError(
            "QuantizationModifier finds no layer to quantize: linear, convolution and embedding layers can be. Look at "
            "ignore, targets and scheme."
        )
    return chosen


def _is_left_alone(name: str, layer: nn.Module) -> bool:
    reason = why_not(layer)
    if reason is not None:
        warn(f"{name} is not quantized: {reason}.")
    return reason is not None


def _refuse_strangers(model: nn.Module, what: str, patterns: Iterable[str]) -> None:
    for pattern in patterns:
        if not any(fits(name, layer, [pattern]) for name, layer in model.named_modules()):
            known = {name for name, _ in model.named_modules() if name} | {type(m).__name__ for m in model.modules()}
            raise ValueError(
                f"{what}: {pattern!r} is neither a layer nor a type of layer of this model"
                f"{suggestion(pattern, known)}. Take it out, or set strict: false."
            )


def _refuse_odd_groups(name: str, layer: nn.Module, rule: Rule | None) -> None:
    if rule is None or rule.strategy != "group":
        return
    weight = getattr(layer, "weight", None)
    assert isinstance(weight, nn.Parameter)
    assert rule.group_size is not None
    if weight.dim() != 2:
        raise ValueError(f"{name}: convolutions have no groups of inputs: give {type(layer).__name__} 'channel'.")
    inputs = weight.shape[0] if is_conv1d(layer) else weight.shape[1]
    if inputs % rule.group_size:
        raise ValueError(
            f"{name} has {inputs} inputs, which are not whole groups of {rule.group_size}: set a group_size that "
            f"divides them, use strategy: channel, or ignore the layer."
        )
