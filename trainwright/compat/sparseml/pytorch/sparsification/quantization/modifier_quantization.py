"""Numbers that are rounded while the model learns."""

from __future__ import annotations

from typing import Any

from trainwright.compat.sparseml.classes.lifecycle import ScheduledModifier
from trainwright.compat.sparseml.classes.properties import ModifierProp
from trainwright.compat.sparseml.classes.shipped import Shipped
from trainwright.compat.sparseml.classes.texts import as_text
from trainwright.compat.sparseml.pytorch.sparsification.quantization.quantization_scheme import QuantizationScheme

__all__ = ["QuantizationModifier"]


class QuantizationModifier(Shipped, ScheduledModifier):
    """Layers round weights and inputs from ``start_epoch`` on."""

    def __init__(
        self,
        start_epoch: float = -1.0,
        scheme: Any = None,
        scheme_overrides: dict[str, Any] | None = None,
        ignore: list[str] | None = None,
        disable_quantization_observer_epoch: float | None = None,
        freeze_bn_stats_epoch: float | None = None,
        model_fuse_fn_name: str | None = None,
        model_fuse_fn_kwargs: dict[str, Any] | None = None,
        num_calibration_steps: int | None = None,
        strict: bool = True,
        end_epoch: float = -1.0,
    ) -> None:
        Shipped.__init__(self, locals())

    @ModifierProp()
    def scheme(self) -> Any:
        """How layers are rounded that ``scheme_overrides`` does not name."""
        return QuantizationScheme.load(self.argument("scheme"))

    @scheme.setter
    def scheme(self, value: object) -> None:
        self.change("scheme", value)

    def props(self, only_serializable: bool, format_str: bool = False, format_repr: bool = False) -> dict[str, Any]:
        found = super().props(only_serializable, format_str, format_repr)
        if only_serializable:
            # As it was given: where nothing was, newer words (config_groups) may say it instead.
            given = found.pop("scheme") and self.argument("scheme")
            if given is not None:
                found["scheme"] = as_text(given) if format_str else repr(given) if format_repr else given
        return dict(sorted(found.items()))
