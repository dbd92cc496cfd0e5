"""Quantization-aware training: the model learns with the rounding that it will be stored with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trainwright.config.warnings import warn
from trainwright.core.modifier import Modifier, Site
from trainwright.recipes.quantization.calibrating import calibrate
from trainwright.recipes.quantization.choosing import choose_layers
from trainwright.recipes.quantization.layers import make_freezable, quantize_layer
from trainwright.recipes.quantization.legacy import OLDER, asked_for

if TYPE_CHECKING:
    from trainwright.recipes.quantization.layers import Quantized
    from trainwright.recipes.quantization.quantizers import ActivationQuantizer

logger = logging.getLogger("trainwright")

_FUSED = ("conv_bn", "conv_bn_relu", "conv_bn_relus", "conv_bv_relus")
_SAME_MOMENT = 1e-6
_ROLES = ("input", "output")


class QuantizationModifier(Modifier):
    """From ``start_epoch`` on, layers round weights, inputs and outputs as quantized ones do; gradients go through.

    Linear, convolution and embedding layers and GPT-2's Conv1D are quantized, by ``scheme``: "default" (weights int8
    symmetric, inputs int8 asymmetric, one scale per tensor), "deepsparse", "tensorrt", a name such as "W8A8", "W4A16"
    or "FP8_DYNAMIC", or a mapping of rules. ``scheme_overrides`` and ``ignore`` go by name of a layer (with all in it),
    ``re:pattern`` or type. Ranges of activations are moving averages until ``disable_quantization_observer_epoch``,
    which fixes the grids of weights too; from ``freeze_bn_stats_epoch`` on, batch normalization keeps its statistics.
    Names of weights stay, zeros stay zeros, and the model loads without this library. ``model_fuse_fn_name`` changes
    nothing while training: batch normalization is folded when the model is exported. ``log_types`` has no effect.

    >>> model = nn.Sequential(nn.Linear(4, 2))
    >>> modifier = QuantizationModifier(scheme={"input_activations": None, "weights": {"num_bits": 2}})
    >>> modifier.prepare_model(model)
    >>> modifier.advance(Site(model, None, steps_per_epoch=1), 0)
    >>> len(model[0].rounded_weight().unique()) <= 4, list(model.state_dict())
    (True, ['0.weight', '0.bias'])
    """

    needs_whole_tensors = True

    def __init__(
        self,
        *,
        start_epoch: float = -1.0,
        scheme: object = None,
        scheme_overrides: dict[str, Any] | None = None,
        ignore: list[str] | None = None,
        disable_quantization_observer_epoch: float | None = None,
        freeze_bn_stats_epoch: float | None = None,
        model_fuse_fn_name: str | None = None,
        model_fuse_fn_kwargs: dict[str, Any] | None = None,
        num_calibration_steps: int | None = None,
        strict: bool = True,
        end_epoch: float = -1.0,
        targets: list[str] | str | None = None,
        config_groups: dict[str, Any] | None = None,
        kv_cache_scheme: object = None,
        post_oneshot_calibration: bool = False,
        log_types: object = "__ALL__",
        submodules: list[str] | None = None,
        quantize_embeddings: bool | None = None,
        reduce_range: bool | None = None,
        quantize_linear_activations: bool | None = None,
        quantize_conv_activations: bool | None = None,
        quantize_embedding_activations: bool | None = None,
        activation_bits: int | None = None,
        weight_bits: int | None = None,
        exclude_batchnorm: bool | None = None,
        exclude_module_types: list[str] | None = None,
        custom_quantizable_module_types: list[str] | None = None,
        activation_qconfig_kwargs: dict[str, Any] | None = None,
        weight_qconfig_kwargs: dict[str, Any] | None = None,
        tensorrt: bool | None = None,
    ) -> None:
        given = locals()
        if end_epoch != -1:
            # SparseML writes one into recipes that it composes.
            warn(f"end_epoch={end_epoch} has no effect: quantization does not end.")
        super().__init__(start_epoch=start_epoch)
        older = {key: given[key] for key in OLDER if given[key] is not None}
        self.asked = asked_for(scheme, scheme_overrides, ignore, targets, config_groups, older)
        self.strict = strict
        self.disable_quantization_observer_epoch = self._moment(
            "disable_quantization_observer_epoch", disable_quantization_observer_epoch
        )
        self.freeze_bn_stats_epoch = self._moment("freeze_bn_stats_epoch", freeze_bn_stats_epoch)
        self.num_calibration_steps = num_calibration_steps
        if post_oneshot_calibration:
            warn("post_oneshot_calibration does not act: ranges are taken when quantization begins, and kept.")
        _refuse_what_cannot_be(model_fuse_fn_name, model_fuse_fn_kwargs, kv_cache_scheme, num_calibration_steps)
        self._layers: dict[str, Quantized] = {}
        self._norms: list[nn.Module] = []
        self._observers: dict[str, ActivationQuantizer] = {}
        #: Ranges as they were after the last update: forward passes of the next step change those in the model.
        self._ranges: dict[str, Tensor] = {}
        self._grids: dict[str, Tensor] = {}
        self._observers_are_off = self._norms_are_frozen = False

    def _moment(self, name: str, epoch: float | None) -> float | None:
        if epoch is None or epoch == -1:
            return None
        if epoch < max(self.start_epoch, 0.0):
            raise ValueError(f"{name}={epoch} comes before start_epoch={self.start_epoch}: make it later.")
        return float(epoch)

    # ---- the model

    def prepare_model(self, model: nn.Module) -> None:
        layers: dict[str, Any] = dict(model.named_modules())
        if self._layers and self.has_begun and all(layers.get(n) is layer for n, layer in self._layers.items()):
            return
        chosen = choose_layers(model, self.asked, strict=self.strict)
        for name, scheme in chosen.items():
            quantize_layer(layers[name], scheme)
        for layer in layers.values():
            if isinstance(layer, nn.TransformerEncoderLayer):
                # Its fast path reads weights past the layers that hold them.
                layer.activation_relu_or_gelu = 0
        self._layers = {name: layers[name] for name in chosen}
        self._observers = {
            f"{name}.{role}": quantizer
            for name, layer in self._layers.items()
            for role in _ROLES
            if (quantizer := getattr(layer, f"{role}_fake_quantizer")) is not None and not quantizer.rule.dynamic
        }
        kinds = nn.modules.batchnorm._BatchNorm
        self._norms = [m for m in layers.values() if isinstance(m, kinds) and m.running_mean is not None]
        for norm in self._norms if self.freeze_bn_stats_epoch is not None else []:
            make_freezable(norm)
        self._put_back()

    def begin(self, site: Site, epoch: float) -> None:
        if not self._layers:
            self.prepare_model(site.model)
        self._switch()

    def update(self, site: Site, epoch: float) -> None:
        if self._has_come(self.disable_quantization_observer_epoch, epoch) and not self._observers_are_off:
            self._fix_grids()
        if self._has_come(self.freeze_bn_stats_epoch, epoch) and not self._norms_are_frozen:
            self._norms_are_frozen = True
            self._switch()

    @staticmethod
    def _has_come(moment: float | None, epoch: float) -> bool:
        return moment is not None and epoch >= moment - _SAME_MOMENT

    @torch.no_grad()
    def _fix_grids(self) -> None:
        """From now on ranges and the grids of weights stay."""
        self._observers_are_off = True
        for name, layer in self._layers.items():
            quantizer = layer.weight_fake_quantizer
            if quantizer is not None:
                quantizer.fix(layer.outputs_first())
                self._grids |= {f"{name}.{part}": tensor for part, tensor in quantizer.named_buffers()}
        self._switch()

    def _switch(self) -> None:
        for layer in self._layers.values():
            layer.rounds = self.has_begun
        for observer in self._observers.values():
            observer.is_observing = self.has_begun and not self._observers_are_off
        if self.freeze_bn_stats_epoch is not None:
            for norm in self._norms:
                norm.keeps_statistics = self._norms_are_frozen  # type: ignore[assignment]

    # ---- each step

    @torch.no_grad()
    def after_update(self, site: Site) -> None:
        if self._ranges and self.has_begun and not self._observers_are_off:
            torch._foreach_copy_(list(self._ranges.values()), self._live_ranges())

    def _live_ranges(self) -> list[Tensor]:
        return [bound for observer in self._observers.values() for bound in (observer.low, observer.high)]

    def _keep_ranges(self) -> None:
        """Hold a range for each observer, in their order: what is held already, or else the model's."""
        names = [f"{name}.{bound}" for name in self._observers for bound in ("low", "high")]
        live = dict(zip(names, self._live_ranges(), strict=True))
        self._ranges = {name: self._ranges.get(name, bound).detach().to(bound).clone() for name, bound in live.items()}

    def finish_model(self, model: nn.Module) -> None:
        """The model goes on rounding; nothing that it sees moves a range any more."""
        for observer in self._observers.values():
            observer.is_observing = False

    @property
    def final_epoch(self) -> float:
        later = (self.disable_quantization_observer_epoch, self.freeze_bn_stats_epoch)
        return max(self.start_epoch, 0.0, *(epoch for epoch in later if epoch is not None))

    def replaced(self, mapping: dict[Any, tuple[Any, Callable[[Any], Any] | None]]) -> None:
        if self._observers_are_off and any(layer.weight in _new(mapping) for layer in self._layers.values()):
            self._fix_grids()

    # ---- without training

    def calibrate(self, model: nn.Module, batches: Iterable[Any], run: Callable[[Any], Any] | None = None) -> None:
        """Quantize ``model`` as it is: see :func:`~trainwright.recipes.quantization.calibrating.calibrate`."""
        self.prepare_model(model)
        self.has_begun = True
        self._switch()
        calibrate(model, batches, run, steps=self.num_calibration_steps)
        self._ranges = {}
        self._keep_ranges()
        self._fix_grids()

    # ---- state

    def tensors_to_save(self) -> dict[str, Tensor]:
        return {**self._ranges, **self._grids}

    def values_to_save(self) -> dict[str, Any]:
        return {"observers_are_off": self._observers_are_off, "norms_are_frozen": self._norms_are_frozen}

    def load_saved(self, tensors: dict[str, Any], values: dict[str, Any]) -> None:
        self._observers_are_off = values["observers_are_off"]
        self._norms_are_frozen = values["norms_are_frozen"]
        is_range = {name: name.endswith((".low", ".high")) for name in tensors}
        # Copies: they change in place, and the file they come from may be mapped into memory.
        self._ranges = {name: tensor.clone() for name, tensor in tensors.items() if is_range[name]}
        self._grids = {name: tensor.clone() for name, tensor in tensors.items() if not is_range[name]}
        self._put_back()

    def resume(self, site: Site, epoch: float) -> None:
        if not self._layers:
            self.prepare_model(site.model)
        self._put_back()

    @torch.no_grad()
    def _put_back(self) -> None:
        """Let the model's quantizers have what this holds."""
        if self._observers:
            self._keep_ranges()
        for name, observer in self._observers.items():
            if f"{name}.low" in self._ranges:
                observer.low.copy_(self._ranges[f"{name}.low"])
                observer.high.copy_(self._ranges[f"{name}.high"])
        for name, layer in self._layers.items():
            quantizer = layer.weight_fake_quantizer
            if quantizer is not None and f"{name}.scale" in self._grids:
                device = layer.weight.device
                quantizer.scale = self._grids[f"{name}.scale"].to(device)
                quantizer.zero_point = self._grids[f"{name}.zero_point"].to(device)
        self._switch()

    def forget(self) -> None:
        super().forget()
        self._layers, self._observers, self._norms = {}, {}, []
        self._ranges, self._grids = {}, {}
        self._observers_are_off = self._norms_are_frozen = False


def _new(mapping: dict[Any, tuple[Any, Any]]) -> set[Any]:
    return {new for new, _ in mapping.values() if new is not None}


def _refuse_what_cannot_be(fuse: str | None, fuse_kwargs: object, kv_cache: object, steps: int | None) -> None:
    if fuse is not None and fuse.lower() not in ("none", "no_fuse"):
        if fuse not in _FUSED:
            raise ValueError(
                f"model_fuse_fn_name={fuse!r}: functions are not called by name from a recipe; use 'conv_bn_relus', or "
                "'no_fuse' and fuse the model before training."
            )
        logger.info("model_fuse_fn_name=%r: batch normalization is folded when the model is exported to ONNX.", fuse)
    if fuse_kwargs:
        raise ValueError("model_fuse_fn_kwargs: no function is called with them; leave them out.")
    if kv_cache is not None:
        raise ValueError("kv_cache_scheme: caches are not quantized while training; leave it out.")
    if steps is not None and steps < 1:
        raise ValueError(f"num_calibration_steps={steps} must be at least 1, or left out for all batches.")
