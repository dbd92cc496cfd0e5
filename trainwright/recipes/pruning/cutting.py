"""Layers made smaller."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.recipes.selecting import is_conv1d, suggestion

_INPUTS_FIRST = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
Replaced = dict[Any, tuple[Any, Callable[[Any], Any] | None]]


def output_dimension(layer: nn.Module) -> int:
    """Where a layer's weight has its outputs; the inputs are in the other of 0 and 1."""
    is_reversed = isinstance(layer, (*_INPUTS_FIRST, nn.Embedding)) or is_conv1d(layer)
    return 1 if is_reversed else 0


def is_by_channel(layer: nn.Module) -> bool:
    """Whether a layer treats each channel by itself: its outputs are its inputs."""
    groups = getattr(layer, "groups", 1)
    return getattr(layer, "num_features", None) is not None or (
        groups > 1 and groups == getattr(layer, "in_channels", None) == getattr(layer, "out_channels", None)
    )


@torch.no_grad()
def cut_layer(layer: nn.Module, outputs: Tensor | None, inputs: Tensor | None) -> Replaced:
    """Keep only these outputs and inputs (indices); returns which parameters took the place of which."""
    replaced: Replaced = {}
    for name, parameter in list(layer.named_parameters(recurse=False)):
        kept = _keeper(layer, parameter, outputs, inputs)
        if kept is not None:
            new = nn.Parameter(kept(parameter.detach()).contiguous().clone(), requires_grad=parameter.requires_grad)
            setattr(layer, name, new)
            replaced[parameter] = (new, kept)
    for name, buffer in list(layer.named_buffers(recurse=False)):
        if outputs is not None and buffer.dim() == 1:
            setattr(layer, name, buffer.index_select(0, outputs).clone())
    sync_sizes(layer)
    return replaced


def _keeper(layer: nn.Module, parameter: Tensor, outputs: Tensor | None, inputs: Tensor | None) -> Any:
    if parameter.dim() == 1:
        return None if outputs is None else lambda tensor: tensor.index_select(0, outputs)
    at = output_dimension(layer)
    dims = [(dim, index) for dim, index in ((at, outputs), (1 - at, inputs)) if index is not None]
    if not dims:
        return None

    def kept(tensor: Tensor) -> Tensor:
        for dim, index in dims:
            tensor = tensor.index_select(dim, index)
        return tensor

    return kept


def sync_sizes(layer: nn.Module) -> None:
    """Let a layer's own words about its size (``in_features``, ``groups``, ...) say what its weight says."""
    weight = getattr(layer, "weight", None)
    if isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = layer.weight.shape
    elif isinstance(layer, nn.Embedding):
        layer.num_embeddings, layer.embedding_dim = layer.weight.shape
    elif isinstance(layer, nn.modules.conv._ConvNd):
        if is_by_channel(layer):
            layer.groups = layer.weight.shape[0]
        ins = layer.weight.shape[1 - output_dimension(layer)]
        outs = layer.weight.shape[output_dimension(layer)]
        is_reversed = output_dimension(layer) == 1
        layer.in_channels = ins if is_reversed else ins * layer.groups
        layer.out_channels = outs * layer.groups if is_reversed else outs
    elif is_conv1d(layer) and weight is not None:
        layer.nx, layer.nf = weight.shape
    elif hasattr(layer, "num_features"):
        sizes = [tensor for tensor in (weight, getattr(layer, "running_mean", None)) if tensor is not None]
        layer.num_features = sizes[0].shape[0] if sizes else layer.num_features
    elif isinstance(layer, nn.LayerNorm) and weight is not None:
        layer.normalized_shape = tuple(weight.shape)


def fit_to_shapes(model: nn.Module, shapes: Mapping[str, Sequence[int]]) -> None:
    """Give the layers of a freshly built model the sizes of a checkpoint's tensors; values are loaded afterwards.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    >>> fit_to_shapes(model, {"0.weight": (3, 4), "0.bias": (3,), "1.weight": (2, 3)})
    >>> model
    Sequential(
      (0): Linear(in_features=4, out_features=3, bias=True)
      (1): Linear(in_features=3, out_features=2, bias=True)
    )
    """
    layers = dict(model.named_modules())
    for name, shape in shapes.items():
        owner, _, attribute = name.rpartition(".")
        layer = layers.get(owner)
        old = getattr(layer, attribute, None)
        if layer is None or not isinstance(old, Tensor):
            raise ValueError(f"The model has no {name}{suggestion(name, dict(model.named_parameters()))}.")
        if tuple(old.shape) == tuple(shape):
            continue
        if old.dim() != len(shape):
            raise ValueError(
                f"{name} has {old.dim()} dimensions here and {len(shape)} in the checkpoint: another model."
            )
        values = torch.zeros(tuple(shape), dtype=old.dtype, device=old.device)
        is_trained = isinstance(old, nn.Parameter)
        setattr(layer, attribute, nn.Parameter(values, requires_grad=old.requires_grad) if is_trained else values)
        if attribute in ("weight", "running_mean"):
            sync_sizes(layer)
