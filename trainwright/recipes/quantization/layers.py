"""Layers that round their weights, inputs and outputs while a switch is on.

A layer stays the object it is: only its class changes, to one of the same name that computes the same until it is
switched on. Parameters, state dict and every reference to the layer stay as they were.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from trainwright.recipes.quantization.quantizers import ActivationQuantizer, WeightQuantizer
from trainwright.recipes.quantization.schemes import Scheme
from trainwright.recipes.selecting import is_conv1d


class Quantized(nn.Module):
    """What all quantized layers have in common; mixed into the class of a layer."""

    #: The class that the layer had before, and which of the forms below it has now.
    plain_class: ClassVar[type[nn.Module]]
    _form: ClassVar[type[Quantized]]
    weight: Tensor
    #: The switch. Plain Python, so that compiled code is made anew when it changes.
    rounds: bool
    weight_fake_quantizer: WeightQuantizer | None
    input_fake_quantizer: ActivationQuantizer | None
    output_fake_quantizer: ActivationQuantizer | None

    def rounded_weight(self) -> Tensor:
        """The weight as its file will hold it."""
        if self.weight_fake_quantizer is None:
            return self.weight
        return self.as_stored(self.weight_fake_quantizer(self.outputs_first()))

    def outputs_first(self) -> Tensor:
        """The weight with its outputs in dimension 0."""
        return self.weight

    def as_stored(self, weight: Tensor) -> Tensor:
        """The other way round."""
        return weight

    def taken_in(self, values: Tensor) -> Tensor:
        """Inputs as the layer sees them."""
        return values if self.input_fake_quantizer is None else self.input_fake_quantizer(values)

    def given_out(self, values: Tensor) -> Tensor:
        """Outputs as the next layer sees them."""
        return values if self.output_fake_quantizer is None else self.output_fake_quantizer(values)

    def __reduce_ex__(self, protocol: object) -> Any:
        # Copies and pickles name the plain class, for this one is made where it is needed.
        return _remade, (type(self).plain_class, type(self)._form), self.__dict__


class QuantizedLinear(Quantized, nn.Linear):
    """A linear layer."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.rounds:
            return super().forward(input)
        return self.given_out(functional.linear(self.taken_in(input), self.rounded_weight(), self.bias))


class QuantizedConv1d(Quantized, nn.Conv1d):
    """A convolution over one dimension."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.rounds:
            return super().forward(input)
        return self.given_out(self._conv_forward(self.taken_in(input), self.rounded_weight(), self.bias))


class QuantizedConv2d(Quantized, nn.Conv2d):
    """A convolution over two dimensions."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.rounds:
            return super().forward(input)
        return self.given_out(self._conv_forward(self.taken_in(input), self.rounded_weight(), self.bias))


class QuantizedConv3d(Quantized, nn.Conv3d):
    """A convolution over three dimensions."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.rounds:
            return super().forward(input)
        return self.given_out(self._conv_forward(self.taken_in(input), self.rounded_weight(), self.bias))


class QuantizedEmbedding(Quantized, nn.Embedding):
    """An embedding: its rows are the channels, and what goes in are indices."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.rounds:
            return super().forward(input)
        found = functional.embedding(
            input,
            self.rounded_weight(),
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
        )
        return self.given_out(found)


class QuantizedInputsFirst(Quantized):
    """GPT-2's Conv1D: a linear layer whose weight has its inputs in dimension 0."""

    bias: nn.Parameter
    nf: int

    def outputs_first(self) -> Tensor:
        return self.weight.t()

    def as_stored(self, weight: Tensor) -> Tensor:
        return weight.t()

    def forward(self, x: Tensor) -> Tensor:
        if not self.rounds:
            return super().forward(x)
        taken = self.taken_in(x)
        flat = torch.addmm(self.bias, taken.reshape(-1, taken.shape[-1]), self.rounded_weight())
        return self.given_out(flat.view(*taken.shape[:-1], self.nf))


class FreezableBatchNorm(nn.Module):
    """Batch normalization that can keep its statistics while the rest of the model trains."""

    plain_class: ClassVar[type[nn.Module]]
    _form: ClassVar[type[nn.Module]]
    keeps_statistics: bool = False

    def forward(self, input: Tensor) -> Tensor:
        if not self.keeps_statistics:
            return super().forward(input)
        norm: Any = self
        return functional.batch_norm(
            input, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps
        )

    def __reduce_ex__(self, protocol: object) -> Any:
        return _remade, (type(self).plain_class, type(self)._form), self.__dict__


_FORMS: dict[type[nn.Module], type[Quantized]] = {
    nn.Linear: QuantizedLinear,
    nn.Conv1d: QuantizedConv1d,
    nn.Conv2d: QuantizedConv2d,
    nn.Conv3d: QuantizedConv3d,
    nn.Embedding: QuantizedEmbedding,
}


def form_for(layer: nn.Module) -> type[Quantized] | None:
    """Which form ``layer`` would have; None where it cannot be quantized."""
    if isinstance(layer, Quantized):
        return type(layer)._form
    if is_conv1d(layer) and isinstance(getattr(layer, "weight", None), nn.Parameter):
        return QuantizedInputsFirst
    return next((form for plain, form in _FORMS.items() if isinstance(layer, plain)), None)


def why_not(layer: nn.Module) -> str | None:
    """Why a layer of a kind that can be quantized must stay as it is."""
    own = type(layer)
    if own is NonDynamicallyQuantizableLinear:
        return "torch's MultiheadAttention reads its weight and never calls it"
    form = form_for(layer)
    plain = next((kind for kind in _FORMS if isinstance(layer, kind)), own)
    if form is None or own is plain or isinstance(layer, Quantized) or own.forward is plain.forward:
        return None
    code = getattr(own.forward, "__code__", None)
    if code is not None and "super" in code.co_names:
        return None
    return f"{own.__name__} computes on its own, without super().forward()"


def quantize_layer(layer: nn.Module, scheme: Scheme) -> None:
    """Give ``layer`` the form that can round, switched off; again is no harm."""
    form = form_for(layer)
    assert form is not None
    if not isinstance(layer, Quantized):
        layer.__class__ = _class_of(type(layer), form)
    quantized: Any = layer
    device = quantized.weight.device
    quantized.rounds = False
    by_sample = isinstance(layer, nn.modules.conv._ConvNd)
    inputs = None if isinstance(layer, nn.Embedding) else scheme.input_activations
    quantized.weight_fake_quantizer = None if scheme.weights is None else WeightQuantizer(scheme.weights)
    quantized.input_fake_quantizer = (
        None if inputs is None else ActivationQuantizer(inputs, device, by_sample=by_sample)
    )
    outputs = scheme.output_activations
    quantized.output_fake_quantizer = (
        None if outputs is None else ActivationQuantizer(outputs, device, by_sample=by_sample)
    )


def make_freezable(norm: nn.Module) -> None:
    """Let ``norm`` keep its statistics when it is told to."""
    if not isinstance(norm, FreezableBatchNorm):
        norm.__class__ = _class_of(type(norm), FreezableBatchNorm)


def restore_layer(layer: nn.Module) -> None:
    """The plain layer again."""
    if not isinstance(layer, (Quantized, FreezableBatchNorm)):
        return
    for name in ("weight_fake_quantizer", "input_fake_quantizer", "output_fake_quantizer"):
        layer._modules.pop(name, None)
        layer.__dict__.pop(name, None)
    for name in ("rounds", "keeps_statistics"):
        layer.__dict__.pop(name, None)
    layer.__class__ = type(layer).plain_class  # type: ignore[bad-argument-type]


@cache
def _class_of(plain: type[nn.Module], form: type[nn.Module]) -> type[nn.Module]:
    """A class between ``form`` and ``plain``, so that a ``forward`` of a subclass reaches the form's by super()."""
    # For tracers, which take torch's own layers as they are, it is one of them.
    names = {"__module__": plain.__module__, "__qualname__": plain.__qualname__, "plain_class": plain, "_form": form}
    bases = (form,) if plain in _FORMS else (plain, form) if issubclass(form, tuple(_FORMS)) else (form, plain)
    return type(plain.__name__, bases, names)


def _remade(plain: type[nn.Module], form: type[nn.Module]) -> nn.Module:
    cls = _class_of(plain, form)
    return cls.__new__(cls)
