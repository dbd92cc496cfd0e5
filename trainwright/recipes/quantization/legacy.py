"""Arguments of SparseML's first QuantizationModifier, and those of its newest, in the words of the one here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from trainwright.config.registry import suggestion
from trainwright.config.warnings import warn
from trainwright.recipes.quantization.schemes import Rule, Scheme, read_scheme, scheme_of

_KINDS = {
    "quantize_linear_activations": ("Linear", "Conv1D"),
    "quantize_conv_activations": ("Conv1d", "Conv2d", "Conv3d"),
    "quantize_embedding_activations": ("Embedding",),
}


@dataclasses.dataclass(frozen=True)
class Asked:
    """What should be quantized, and how."""

    scheme: Scheme
    overrides: dict[str, Scheme]
    ignore: list[str]
    targets: list[str] | None
    #: Schemes of types that the model need not have.
    by_kind: dict[str, Scheme] = dataclasses.field(default_factory=dict)


def asked_for(
    scheme: object,
    scheme_overrides: Mapping[str, Any] | None,
    ignore: list[str] | str | None,
    targets: list[str] | str | None,
    config_groups: Mapping[str, Any] | None,
    older: Mapping[str, Any],
) -> Asked:
    """All ways to say it, as one."""
    if older and (scheme is not None or scheme_overrides or config_groups):
        raise ValueError(f"{next(iter(older))} belongs to the older way to write it: use scheme alone, or it alone.")
    ignored = [ignore] if isinstance(ignore, str) else list(ignore or [])
    chosen = [targets] if isinstance(targets, str) else None if targets is None else list(targets)
    if older:
        return _from_older(dict(older), ignored, chosen)
    if config_groups:
        return _from_groups(config_groups, scheme, scheme_overrides, ignored, chosen)
    own = read_scheme(scheme)
    overrides = {
        name: read_scheme(value, own, f"scheme_overrides.{name}") for name, value in (scheme_overrides or {}).items()
    }
    return Asked(own, overrides, ignored, chosen)


def _from_groups(
    groups: Mapping[str, Any],
    scheme: object,
    scheme_overrides: object,
    ignored: list[str],
    targets: list[str] | None,
) -> Asked:
    if scheme is not None or scheme_overrides or targets is not None:
        raise ValueError("config_groups says which layers get which scheme: leave scheme and targets out.")
    overrides: dict[str, Scheme] = {}
    for name, group in groups.items():
        if isinstance(group, (list, tuple)):
            # A preset by its name, with the layers that it is for.
            overrides |= {target: read_scheme(name, what=f"config_groups.{name}") for target in group}
            continue
        rules = {key: value for key, value in group.items() if key not in ("targets", "format")}
        own = scheme_of(rules, f"config_groups.{name}", symmetric=True)
        overrides |= dict.fromkeys(group.get("targets") or ["Linear"], own)
    return Asked(Scheme(), overrides, ignored, None)


def _from_older(older: dict[str, Any], ignored: list[str], targets: list[str] | None) -> Asked:
    if custom := older.pop("custom_quantizable_module_types", None):
        warn(
            f"custom_quantizable_module_types={custom!r} has no effect: linear, convolution and embedding layers are "
            "quantized, and classes that derive from them; what others compute is not rounded."
        )
    if older.pop("exclude_batchnorm", True) is False:
        warn("exclude_batchnorm: false does not act: batch normalization is computed in floating point.")
    submodules = older.pop("submodules", None)
    if submodules is not None:
        targets = list(submodules)
    ignored = [*ignored, *(older.pop("exclude_module_types", None) or [])]
    if older.pop("quantize_embeddings", True) is False:
        ignored.append("Embedding")
    inputs, weights = _older_rules(older)
    # Each kind of layer says by itself whether what it gives out is rounded too.
    by_kind = {
        kind: Scheme(inputs, weights, inputs if older.get(key, True) else None)
        for key, kinds in _KINDS.items()
        for kind in kinds
    }
    for key in (*_KINDS, "tensorrt"):
        older.pop(key, None)
    if older:
        name = next(iter(older))
        raise ValueError(f"There is no argument {name!r}{suggestion(name, OLDER)}.")
    return Asked(Scheme(inputs, weights), {}, ignored, targets, by_kind)


def _older_rules(older: dict[str, Any]) -> tuple[Rule, Rule]:
    options = [dict(older.pop(f"{role}_qconfig_kwargs", None) or {}) for role in ("activation", "weight")]
    if older.pop("reduce_range", False):
        for option in options:
            option["reduce_range"] = True
    bits = [older.pop(f"{role}_bits", None) or 8 for role in ("activation", "weight")]
    is_symmetric = bool(older.get("tensorrt", False))
    inputs = {"num_bits": bits[0], "symmetric": is_symmetric, "kwargs": options[0]}
    weights = {"num_bits": bits[1], "symmetric": True, "kwargs": options[1]}
    # Read as a scheme, which checks them.
    both = read_scheme({"input_activations": inputs, "weights": weights}, what="QuantizationModifier")
    first, second = both.input_activations, both.weights
    assert first is not None
    assert second is not None
    return first, second


#: Keys of the first QuantizationModifier that the later ones do not have.
OLDER = (
    "submodules",
    "quantize_embeddings",
    "reduce_range",
    *_KINDS,
    "activation_bits",
    "weight_bits",
    "exclude_batchnorm",
    "exclude_module_types",
    "custom_quantizable_module_types",
    "activation_qconfig_kwargs",
    "weight_qconfig_kwargs",
    "tensorrt",
)
