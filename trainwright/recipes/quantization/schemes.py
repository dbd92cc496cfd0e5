"""Quantization schemes: how many bits for inputs, weights and outputs of a layer, and what shares a scale."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainwright.config.registry import suggestion

STRATEGIES = ("tensor", "channel", "group", "token")
ROLES = ("input_activations", "weights", "output_activations")
#: What a moving average takes from each batch, as torch's observers do.
_FROM_EACH_BATCH = 0.01
_GROUP = 128
#: Known to compressed-tensors, but not as fake quantization here.
_NOT_TRAINED = ("FP8_BLOCK", "NVFP4", "NVFP4A16", "MXFP4", "MXFP4A16", "MXFP8", "MXFP8A16", "MXFP6A16", "MXFP6A8")


@dataclass(frozen=True)
class Rule:
    """How one tensor is quantized."""

    num_bits: int = 8
    symmetric: bool = False
    #: What shares a scale: the tensor, an output channel, ``group_size`` neighbours along the inputs, or a token.
    strategy: str = "tensor"
    group_size: int | None = None
    #: "int", or "float" for 8-bit floating point (e4m3).
    type: str = "int"
    #: The scale is computed for each tensor anew instead of being kept from training.
    dynamic: bool = False
    #: One bit less of range, for hardware whose sums overflow.
    reduce_range: bool = False
    averaging_constant: float = _FROM_EACH_BATCH

    @property
    def lowest(self) -> int:
        """The smallest code."""
        return -(2 ** (self.num_bits - 1 - self.reduce_range))

    @property
    def highest(self) -> int:
        """The largest code."""
        return 2 ** (self.num_bits - 1 - self.reduce_range) - 1


@dataclass(frozen=True)
class Scheme:
    """Rules of a layer; None leaves a tensor as it is."""

    input_activations: Rule | None = None
    weights: Rule | None = None
    output_activations: Rule | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, role) is not None for role in ROLES)


_INT8_INPUTS, _INT8_WEIGHTS = Rule(), Rule(symmetric=True)
DEFAULT = Scheme(input_activations=_INT8_INPUTS, weights=_INT8_WEIGHTS)
_FP8 = Rule(symmetric=True, type="float")
_PRESETS = {
    "deepsparse": DEFAULT,
    "tensorrt": Scheme(input_activations=_INT8_WEIGHTS, weights=_INT8_WEIGHTS),
    "UNQUANTIZED": Scheme(),
    "FP8": Scheme(input_activations=_FP8, weights=_FP8),
    "FP8_DYNAMIC": Scheme(
        input_activations=dataclasses.replace(_FP8, strategy="token", dynamic=True),
        weights=dataclasses.replace(_FP8, strategy="channel"),
    ),
    "W4A16_ASYM": Scheme(weights=Rule(num_bits=4, strategy="group", group_size=_GROUP)),
    "W4AFP8": Scheme(
        input_activations=dataclasses.replace(_FP8, strategy="token", dynamic=True),
        weights=Rule(num_bits=4, symmetric=True, strategy="group", group_size=_GROUP),
    ),
}


def read_scheme(value: object, default: Scheme = DEFAULT, what: str = "scheme") -> Scheme:
    """A scheme from its name, a dict, or None for ``default``.

    Of a dict's ``input_activations`` and ``weights`` those that are missing are as in the default scheme (8 bits), and
    None leaves them alone. A rule that does not say ``symmetric`` is asymmetric.

    >>> read_scheme("W8A8").weights.strategy
    'channel'
    >>> read_scheme({"input_activations": None, "weights": {"num_bits": 2, "symmetric": True}}).weights.highest
    1
    """
    if isinstance(value, Scheme):
        return value
    if value is None or value == "default":
        return default
    if isinstance(value, str):
        return _preset(value, what)
    if not isinstance(value, Mapping):
        raise ValueError(f"{what}={value!r} must be a name ({', '.join(_PRESETS)}, W8A8, ...) or a mapping of rules.")
    for key in value:
        if key not in (*ROLES, "target_hardware"):
            raise ValueError(f"{what}: there is no {key!r}{suggestion(str(key), ROLES)}; write {', '.join(ROLES)}.")
    # What SparseML fills in where a mapping says nothing.
    rules: dict[str, Any] = {"input_activations": {}, "weights": {"symmetric": True}, **value}
    return scheme_of(rules, what)


def scheme_of(rules: Mapping[str, Any], what: str, *, symmetric: bool = False) -> Scheme:
    """A scheme from rules, where what is not named is left alone; ``symmetric`` is for rules that do not say."""
    found = {role: read_rule(rules.get(role), f"{what}.{role}", symmetric=symmetric) for role in ROLES}
    return Scheme(**{role: _checked(rule, role, f"{what}.{role}") for role, rule in found.items()})


def _preset(name: str, what: str) -> Scheme:
    known = {key.lower(): preset for key, preset in _PRESETS.items()}
    if name.lower() in known:
        return known[name.lower()]
    if name.upper() == "INT8":
        return _preset("W8A8", what)
    found = re.fullmatch(r"W([2-8])A(4|8|16)", name, re.IGNORECASE)
    if found is None:
        if name.upper() in _NOT_TRAINED:
            raise ValueError(f"{what}={name!r} cannot be trained here: use FP8_DYNAMIC, W8A8 or W4A16.")
        hint = suggestion(name, [*_PRESETS, "default", "W8A8", "W4A16", "INT8"])
        raise ValueError(f"{what}={name!r} is no scheme{hint}; there are default, {', '.join(_PRESETS)}, W8A8, W4A16.")
    bits, of_inputs = int(found[1]), int(found[2])
    is_w8a8 = (bits, of_inputs) == (8, 8)
    weights = Rule(
        num_bits=bits,
        symmetric=True,
        strategy="channel" if is_w8a8 else "group",
        group_size=None if is_w8a8 else _GROUP,
    )
    inputs = None if of_inputs == 16 else Rule(num_bits=of_inputs, symmetric=True, strategy="token", dynamic=True)
    return Scheme(input_activations=inputs, weights=weights)


_FIELDS = ("num_bits", "symmetric", "strategy", "group_size", "type", "dynamic")
#: Fields of compressed-tensors' arguments whose usual values change nothing.
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "observer": (None, "minmax", "static_minmax", "memoryless_minmax"),
    "observer_kwargs": (None, {}),
    "block_structure": (None,),
    "actorder": (None, False),
    "scale_dtype": (None,),
    "zp_dtype": (None, "torch.int8"),
}


def read_rule(value: object, what: str, *, symmetric: bool = False) -> Rule | None:
    """One rule; None, "null" and "None" for none."""
    if value is None or value in ("null", "None"):
        return None
    if isinstance(value, Rule):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"{what}={value!r} must be a mapping such as {{num_bits: 8, symmetric: true}}.")
    for key, given in value.items():
        if key in _HARMLESS and given not in _HARMLESS[key]:
            raise ValueError(f"{what}.{key}={given!r} is not supported: leave it out.")
        if key not in (*_FIELDS, *_HARMLESS, "kwargs"):
            raise ValueError(f"{what}: there is no {key!r}{suggestion(str(key), _FIELDS)}; write {', '.join(_FIELDS)}.")
    said = {key: given for key, given in value.items() if key in _FIELDS and given is not None}
    if said.get("strategy") == "token":
        said["dynamic"] = True
    if said.get("group_size") is not None and "strategy" not in said:
        said["strategy"] = "group"
    if said.get("strategy") == "group":
        said.setdefault("group_size", _GROUP)
    if said.get("type") == "float":
        said["symmetric"] = True
    said.setdefault("symmetric", symmetric)
    return Rule(**said, **_observer_options(value.get("kwargs") or {}, f"{what}.kwargs"))


def _observer_options(options: Mapping[str, Any], what: str) -> dict[str, Any]:
    for key in options:
        if key not in ("reduce_range", "averaging_constant"):
            raise ValueError(f"{what}: {key!r} is not supported; there are reduce_range and averaging_constant.")
    return dict(options)


def _checked(rule: Rule | None, role: str, what: str) -> Rule | None:
    if rule is None:
        return None
    if not isinstance(rule.num_bits, int) or not 2 <= rule.num_bits <= 8:
        raise ValueError(f"{what}: num_bits={rule.num_bits!r} must be a whole number from 2 to 8.")
    if rule.type not in ("int", "float"):
        raise ValueError(f"{what}: type={rule.type!r} must be 'int' or 'float'.")
    if rule.type == "float" and rule.num_bits != 8:
        raise ValueError(f"{what}: floating point has 8 bits (e4m3): write num_bits: 8, or type: int.")
    if rule.strategy not in STRATEGIES:
        hint = suggestion(str(rule.strategy), STRATEGIES)
        raise ValueError(f"{what}: strategy={rule.strategy!r} must be one of {', '.join(STRATEGIES)}{hint}.")
    if not 0 < rule.averaging_constant <= 1:
        raise ValueError(f"{what}: averaging_constant={rule.averaging_constant} must lie between 0 and 1.")
    if role == "weights":
        if rule.strategy == "token" or rule.dynamic:
            raise ValueError(f"{what}: weights have no tokens and keep their scale: use tensor, channel or group.")
        if rule.type == "float" and rule.strategy == "group":
            raise ValueError(f"{what}: floating point weights share a scale by tensor or channel: change strategy.")
        return rule
    if rule.strategy in ("channel", "group"):
        raise ValueError(f"{what}: activations share a scale by tensor or token: change strategy={rule.strategy!r}.")
    return rule
