"""How numbers are rounded, as objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["QuantizationArgs", "QuantizationScheme"]


@dataclass
class QuantizationArgs:
    """How one tensor is rounded."""

    num_bits: int = 8
    symmetric: bool = True
    strategy: str = "tensor"
    kwargs: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def default_activation_args(cls) -> QuantizationArgs:
        """8 bits, asymmetric."""
        return cls(symmetric=False)

    @classmethod
    def default_weight_args(cls) -> QuantizationArgs:
        """8 bits, symmetric."""
        return cls(symmetric=True)


@dataclass
class QuantizationScheme:
    """How a layer is rounded: None leaves a tensor as it is.

    >>> QuantizationScheme(weights=None).as_recipe()["weights"] is None
    True
    """

    input_activations: QuantizationArgs | None = field(default_factory=QuantizationArgs.default_activation_args)
    weights: QuantizationArgs | None = field(default_factory=QuantizationArgs.default_weight_args)
    output_activations: QuantizationArgs | None = None
    target_hardware: str | None = None

    def __post_init__(self) -> None:
        for name in ("input_activations", "weights", "output_activations"):
            given: Any = getattr(self, name)
            if isinstance(given, Mapping):
                setattr(self, name, QuantizationArgs(**given))

    @classmethod
    def load(cls, scheme: Any, default: QuantizationScheme | None = None) -> Any:
        """From a mapping, a name ("default", "deepsparse", "tensorrt"), None or such an object."""
        if scheme is None or scheme == "default":
            return default or cls()
        if isinstance(scheme, Mapping):
            return cls(**scheme)
        if scheme == "deepsparse":
            return cls(target_hardware="deepsparse")
        if scheme == "tensorrt":
            symmetric = QuantizationArgs.default_weight_args()
            return cls(input_activations=symmetric, weights=symmetric, target_hardware="tensorrt")
        # A name that only this library knows stays one.
        return scheme

    @classmethod
    def deepsparse(cls) -> QuantizationScheme:
        """As DeepSparse runs it."""
        return cls.load("deepsparse")

    @classmethod
    def tensorrt(cls) -> QuantizationScheme:
        """As TensorRT runs it."""
        return cls.load("tensorrt")

    def as_recipe(self) -> dict[str, Any]:
        """The mapping that a recipe has for it."""
        roles = ("input_activations", "weights", "output_activations")
        return {role: None if (one := getattr(self, role)) is None else asdict(one) for role in roles}

    def __str__(self) -> str:
        return str(self.as_recipe())
