"""What a modifier does, in one line of words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainwright.recipes.language.records import ModifierSpec


def describe(spec: ModifierSpec) -> str:
    """What ``spec`` asks for, without its epochs.

    >>> describe(ModifierSpec("MagnitudePruningModifier", {
    ...     "init_sparsity": 0.05, "final_sparsity": 0.9, "update_frequency": 0.5, "params": "__ALL_PRUNABLE__"
    ... }))
    'sparsity 5% → 90%, cubic, every 0.5 epochs, __ALL_PRUNABLE__'
    """
    words = _WORDS.get(spec.kind, _anything)(spec.arguments)
    return ", ".join(word for word in words if word)


def short_name(kind: str) -> str:
    """``MagnitudePruning`` for ``MagnitudePruningModifier``."""
    return kind.removesuffix("Modifier") or kind


def _percent(value: Any) -> str:
    if isinstance(value, dict):
        return " / ".join(_percent(key) for key in value)
    if value == "__FROM_PARAM__":
        return "as it is"
    return f"{value * 100:.4g}%" if _is_number(value) else _shown(value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        text = ", ".join(_shown(item) for item in value[:3])
        return f"{text}, … ({len(value)})" if len(value) > 3 else text
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(item)}" for name, item in list(value.items())[:4])
    return str(value)


def _named(arguments: dict[str, Any], name: str, label: str, default: object = None) -> str:
    value = arguments.get(name, default)
    return "" if value is None else f"{label} {_shown(value)}".strip()


def _every(arguments: dict[str, Any]) -> str:
    often = arguments.get("update_frequency", -1)
    return "" if often == -1 else f"every {_shown(often)} epochs"


def _on(arguments: dict[str, Any], name: str = "params") -> str:
    return _named(arguments, name, "")


def _mask(arguments: dict[str, Any]) -> str:
    kind = arguments.get("mask_type", "unstructured")
    return "" if kind == "unstructured" else f"{_shown(kind)} mask"


def _pruning(arguments: dict[str, Any]) -> list[str]:
    start, end = (_percent(arguments.get(name, "?")) for name in ("init_sparsity", "final_sparsity"))
    shape = str(arguments.get("inter_func", "cubic"))
    return [f"sparsity {start} → {end}", shape, _every(arguments), _mask(arguments), _on(arguments)]


def _rate_function(arguments: dict[str, Any]) -> list[str]:
    start, end = (_shown(arguments.get(name, "?")) for name in ("init_lr", "final_lr"))
    return [f"learning rate {start} → {end}", _named(arguments, "lr_func", "")]


def _rate_class(arguments: dict[str, Any]) -> list[str]:
    options = _named(arguments, "lr_kwargs", "")
    return [_named(arguments, "init_lr", "learning rate from"), _named(arguments, "lr_class", ""), options]


def _gradual(arguments: dict[str, Any]) -> list[str]:
    start, end = (_shown(arguments.get(name, "?")) for name in ("init_val", "final_val"))
    return [f"{start} → {end}", str(arguments.get("inter_func", "linear")), _every(arguments), _on(arguments)]


def _trainable(arguments: dict[str, Any]) -> list[str]:
    return ["trained" if arguments.get("trainable", True) else "frozen", _on(arguments)]


def _alternating(arguments: dict[str, Any]) -> list[str]:
    sparse = _percent(arguments.get("compression_sparsity", "?"))
    return [f"dense and {sparse} sparse in turn", _every(arguments), _on(arguments)]


def _regrowing(arguments: dict[str, Any]) -> list[str]:
    return [f"{_percent(arguments.get('final_sparsity', '?'))} sparse", "regrown by gradient", _every(arguments)]


def _two_masks(arguments: dict[str, Any]) -> list[str]:
    forward, backward = (_percent(arguments.get(f"{way}_sparsity", "?")) for way in ("forward", "backward"))
    return [f"forward {forward} sparse", f"backward {backward} sparse", _every(arguments), _on(arguments)]


def _quantization(arguments: dict[str, Any]) -> list[str]:
    scheme = arguments.get("scheme")
    bits = f"int{arguments.get('weight_bits', 8)} weights" if scheme is None else f"scheme {_shown(scheme)}"
    observers = _named(arguments, "disable_quantization_observer_epoch", "ranges fixed from epoch")
    return [bits, observers, _named(arguments, "freeze_bn_stats_epoch", "batch norm fixed from epoch")]


def _distillation(arguments: dict[str, Any]) -> list[str]:
    hardness, temperature = arguments.get("hardness", 0.5), arguments.get("temperature", 2.0)
    return [
        f"hardness {_shown(hardness)}",
        f"temperature {_shown(temperature)}",
        _named(arguments, "distill_output_keys", "outputs"),
    ]


def _per_layer(arguments: dict[str, Any]) -> list[str]:
    return [_named(arguments, "gain", "gain", 1.5), _named(arguments, "student_layer_names", "layers")]


def _per_output(arguments: dict[str, Any]) -> list[str]:
    return [_named(arguments, "comparison", "compared by"), _named(arguments, "targets", "")]


def _thinning(arguments: dict[str, Any]) -> list[str]:
    kind = arguments.get("structure_type", "filter")
    return [f"takes out {kind}s that are zero", _named(arguments, "update_epochs", "again at")]


def _anything(arguments: dict[str, Any]) -> list[str]:
    """Modifiers of somebody's own, and those whose arguments speak for themselves."""
    times = ("start_epoch", "end_epoch", "update_frequency", "log_types")
    return [_every(arguments), *(f"{name} {_shown(value)}" for name, value in arguments.items() if name not in times)]


_WORDS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "EpochRangeModifier": lambda arguments: ["the epochs of the training"],
    "SetLearningRateModifier": lambda arguments: [_named(arguments, "learning_rate", "learning rate")],
    "LearningRateFunctionModifier": _rate_function,
    "LearningRateModifier": _rate_class,
    "SetWeightDecayModifier": lambda arguments: [_named(arguments, "weight_decay", "weight decay")],
    "TrainableParamsModifier": _trainable,
    "SetParamModifier": lambda arguments: [_named(arguments, "val", "set to"), _on(arguments)],
    "GradualParamModifier": _gradual,
    "SparsificationLoggingModifier": lambda arguments: [
        "logs sparsity",
        _every({"update_frequency": 1.0, **arguments}),
    ],
    "GMPruningModifier": _pruning,
    "MagnitudePruningModifier": _pruning,
    "GlobalMagnitudePruningModifier": lambda arguments: [*_pruning(arguments), "one threshold for all"],
    "ConstantPruningModifier": lambda arguments: ["zeros stay zero", _on(arguments)],
    "MovementPruningModifier": _pruning,
    "OBSPruningModifier": _pruning,
    "MFACPruningModifier": _pruning,
    "ACDCPruningModifier": _alternating,
    "RigLPruningModifier": _regrowing,
    "TopKASTPruningModifier": _two_masks,
    "PowerpropagationModifier": lambda arguments: [_named(arguments, "alpha", "alpha", 1.0), _on(arguments)],
    "StructuredPruningModifier": lambda arguments: _pruning({"mask_type": "filter", **arguments}),
    "LayerThinningModifier": _thinning,
    "LayerPruningModifier": lambda arguments: [f"without {_on(arguments, 'layers')}"],
    "QuantizationModifier": _quantization,
    "DistillationModifier": _distillation,
    "OutputDistillationModifier": _per_output,
    "PerLayerDistillationModifier": _per_layer,
}
