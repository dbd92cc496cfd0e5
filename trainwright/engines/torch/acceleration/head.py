"""The output layer of a language model puts out :class:`Logits`, of which the loss is taken without making them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as every_module

from trainwright.engines.torch.acceleration.call import Call
from trainwright.engines.torch.acceleration.logits import Logits, OutputLayer, output_layer
from trainwright.engines.torch.acceleration.technique import Situation, Undo

#: A layer with fewer outputs is no vocabulary, and its outputs take little memory.
LEAST_WORDS = 4096


class NoLogits:
    name = "logits"
    says = "the loss is taken without making logits"
    changes_bits = True
    is_visible = True
    is_proven = True
    is_compiled = False
    pays_on_cpu = True

    def why_not(self, situation: Situation) -> str | None:
        head = output_layer(situation.network)
        if head is None:
            return "the network has no plain linear output layer of a language model"
        if head.out_features < LEAST_WORDS and not situation.is_asked_for:
            return f"with {head.out_features} words logits take little memory"
        if not situation.loss_is_the_networks:
            return "the loss is not computed by the network from its labels"
        if situation.layout not in ("sp", "ddp"):
            return f"an output layer that is spread by {situation.layout} is not there when the loss is taken"
        for name in ("torch_compile", "use_liger_kernel"):
            if name in situation.settings:
                return f"{name}=True does it another way"
        if has_hooks(head):
            return "somebody's hook listens to the output layer"
        if head._compiled_call_impl is not None:
            return "the output layer is compiled already"
        return None

    def why_not_for(self, call: Call) -> str | None:
        return None

    def install(self, situation: Situation) -> Undo:
        head = output_layer(situation.network)
        assert head is not None
        layer = head

        # nn.Module calls what is here in place of its own call, and a copy of the layer does not take it along.
        head._compiled_call_impl = lambda *args, **kwargs: _call(layer, *args, **kwargs)

        def undo() -> None:
            layer._compiled_call_impl = None

        return undo


def _call(head: nn.Linear, *args: Any, **kwargs: Any) -> Tensor:
    plain = len(args) == 1 and not kwargs and head.training and torch.is_grad_enabled() and not has_hooks(head)
    if not plain or torch.compiler.is_compiling():
        return head._call_impl(*args, **kwargs)
    states: Tensor = args[0]
    kind = states.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else head.weight.dtype
    return Logits.of(states, OutputLayer(head.weight, head.bias, dtype))


def has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or every_module._has_any_global_hook()
    )
