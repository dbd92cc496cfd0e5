"""2:4 sparsity at run time: torch's own kernels, on GPUs that have them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

#: Tensor cores skip zeros from this generation on.
_CAPABILITY = (8, 0)


def is_two_of_four(weight: Tensor) -> bool:
    """Whether of any four neighbours in a row at most two are not zero.

    >>> is_two_of_four(torch.tensor([[0.0, 1.0, 2.0, 0.0]])), is_two_of_four(torch.ones(1, 4))
    (True, False)
    """
    if weight.dim() != 2 or weight.shape[1] % 4:
        return False
    return bool((weight.detach().reshape(-1, 4).count_nonzero(1) <= 2).all())


def layers_of_two_of_four(model: nn.Module) -> list[str]:
    """Linear layers whose weights are 2:4 and of a size that the kernels take."""
    return [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and is_two_of_four(layer.weight) and _fits_kernels(layer.weight)
    ]


def _fits_kernels(weight: Tensor) -> bool:
    return weight.shape[0] % 32 == 0 and weight.shape[1] % 64 == 0


def to_semi_structured(model: nn.Module) -> list[str]:
    """Let the 2:4 layers of ``model`` compute with half of their weights, in place; returns their names.

    For inference on a CUDA device from the Ampere generation on, in float16 or bfloat16. Nothing is written: torch has
    no format for such weights but pickles.
    """
    names = layers_of_two_of_four(model)
    if not names:
        raise ValueError(
            "No linear layer is 2:4 sparse with sizes that are multiples of 32 and 64: train with mask_type: '2:4'."
        )
    layers = dict(model.named_modules())
    for name in names:
        layer = layers[name]
        assert isinstance(layer, nn.Linear)
        weight = layer.weight
        if not weight.is_cuda:
            raise ValueError(f"{name} is on {weight.device}: torch has 2:4 kernels for CUDA alone; use model.cuda().")
        if torch.cuda.get_device_capability(weight.device) < _CAPABILITY:
            raise ValueError(f"{torch.cuda.get_device_name(weight.device)} has no 2:4 kernels: Ampere or later has.")
        if weight.dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(f"{name} is {weight.dtype}: the kernels take float16 and bfloat16; use model.half().")
        layer.weight = nn.Parameter(torch.sparse.to_sparse_semi_structured(weight.detach()), requires_grad=False)
    return names
