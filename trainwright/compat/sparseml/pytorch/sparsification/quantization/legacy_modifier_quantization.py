"""The first QuantizationModifier, which names layers by submodule."""

from __future__ import annotations

from typing import Any

from trainwright.compat.sparseml.classes.lifecycle import ScheduledModifier
from trainwright.compat.sparseml.classes.shipped import Shipped

__all__ = ["QuantizationModifier"]


class QuantizationModifier(Shipped, ScheduledModifier):
    """Layers in ``submodules`` round weights and inputs from ``start_epoch`` on."""

    def __init__(
        self,
        start_epoch: float = -1.0,
        submodules: list[str] | None = None,
        model_fuse_fn_name: str | None = None,
        disable_quantization_observer_epoch: float | None = None,
        freeze_bn_stats_epoch: float | None = None,
        end_epoch: float = -1,
        model_fuse_fn_kwargs: dict[str, Any] | None = None,
        quantize_embeddings: bool = True,
        reduce_range: bool = False,
        quantize_linear_activations: bool = True,
        quantize_conv_activations: bool = True,
        quantize_embedding_activations: bool = True,
        activation_bits: int = 8,
        weight_bits: int = 8,
        num_calibration_steps: int | None = None,
        exclude_batchnorm: bool = True,
        exclude_module_types: list[str] | None = None,
        custom_quantizable_module_types: list[str] | None = None,
        activation_qconfig_kwargs: dict[str, Any] | None = None,
        weight_qconfig_kwargs: dict[str, Any] | None = None,
        tensorrt: bool = False,
    ) -> None:
        Shipped.__init__(self, locals())
