"""Attention over the samples of a batch that stand behind each other in one row, none of which sees another."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

#: Lengths that kernels for several samples are started for are rounded up to this: few distinct ones.
_LENGTHS = 512


class Bounds(NamedTuple):
    """Where each sample's tokens stand in the row, and where they stood in the batch."""

    #: The row's positions at which samples begin, and its end.
    ends: Tensor
    #: For each token of the row its place in the batch, samples and positions in one number; one beyond them for a
    #: token that only fills up the row.
    places: Tensor
    #: Which places of the batch are no padding: samples x positions.
    kept: Tensor
    is_causal: bool


class _Kernel:
    """Torch's kernel for samples of different lengths in one row; looked for before anything is compiled."""

    def __init__(self) -> None:
        self.function: Any = None
        self.can_scale = False

    def find(self, device: torch.device) -> None:
        """None is found where torch or the GPU is older."""
        if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
            return
        try:
            from torch.nn.attention.varlen import varlen_attn
        except ImportError:
            return
        names = inspect.signature(varlen_attn).parameters
        if "window_size" in names:
            self.function, self.can_scale = varlen_attn, "scale" in names


_kernel = _Kernel()
find_kernel = _kernel.find


def attend(
    query: Tensor, key: Tensor, value: Tensor, bounds: Bounds, *, dropout: float, scaling: float | None
) -> Tensor:
    """Attention within each sample. ``query`` is 1 x heads x tokens x size, the result 1 x tokens x heads x size."""
    if query.is_cuda and dropout == 0.0 and _serves(value, scaling):
        return _in_one_kernel(query, key, value, bounds, scaling)
    if query.is_cuda or torch.compiler.is_compiling():
        return _padded(query, key, value, bounds, dropout, scaling)
    return _one_by_one(query, key, value, bounds, dropout, scaling)


def _one_by_one(
    query: Tensor, key: Tensor, value: Tensor, bounds: Bounds, dropout: float, scaling: float | None
) -> Tensor:
    """On a CPU starting a kernel costs nothing beside what it computes."""
    sizes = bounds.ends.diff().tolist()
    parts = zip(*(tensor.split(sizes, dim=2) for tensor in (query, key, value)), strict=True)
    found = [
        scaled_dot_product_attention(
            *part, dropout_p=dropout, is_causal=bounds.is_causal, scale=scaling, enable_gqa=_is_grouped(query, key)
        )
        for part in parts
        if part[0].shape[2]
    ]
    return torch.cat(found, dim=2).transpose(1, 2)


def _padded(query: Tensor, key: Tensor, value: Tensor, bounds: Bounds, dropout: float, scaling: float | None) -> Tensor:
    """Samples below each other, padding masked; everything else in a block still does without padding."""
    samples, length = bounds.kept.shape

    def apart(tensor: Tensor) -> Tensor:
        rows = tensor[0].transpose(0, 1)
        # One more row, for tokens that only fill up.
        empty = rows.new_zeros((samples * length + 1, *rows.shape[1:]))
        found = empty.index_copy(0, bounds.places, rows)[:-1]
        return found.view(samples, length, *rows.shape[1:]).transpose(1, 2)

    found = scaled_dot_product_attention(
        apart(query),
        apart(key),
        apart(value),
        attn_mask=_mask_of(bounds),
        dropout_p=dropout,
        scale=scaling,
        enable_gqa=_is_grouped(query, key),
    )
    found = found.transpose(1, 2).reshape(samples * length, *found.shape[1:2], found.shape[-1])
    return found.index_select(0, bounds.places.clamp(max=samples * length - 1))[None]


def _mask_of(bounds: Bounds) -> Tensor:
    """Which places of each text look at which, with texts below each other: samples x 1 x positions x positions."""
    length = bounds.kept.shape[1]
    # Whoever has no key at all, as padding before a text in a causal model, looks at itself: no NaN comes of it.
    itself = torch.eye(length, dtype=torch.bool, device=bounds.kept.device)
    mask = bounds.kept[:, None, None, :] | itself
    return mask & torch.ones_like(itself).tril() if bounds.is_causal else mask


def _in_one_kernel(query: Tensor, key: Tensor, value: Tensor, bounds: Bounds, scaling: float | None) -> Tensor:
    if _is_grouped(query, key):
        times = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(times, dim=1), value.repeat_interleave(times, dim=1)
    # Models turn queries and keys in single precision; the values come out of their layer as autocast wants them.
    rows = [tensor[0].transpose(0, 1).to(value.dtype).contiguous() for tensor in (query, key, value)]
    length = -(-bounds.kept.shape[1] // _LENGTHS) * _LENGTHS
    options: dict[str, Any] = {} if scaling is None or not _kernel.can_scale else {"scale": scaling}
    window = (-1, 0) if bounds.is_causal else (-1, -1)
    return _kernel.function(*rows, bounds.ends, bounds.ends, length, length, window_size=window, **options)[None]


def _serves(value: Tensor, scaling: float | None) -> bool:
    """Whether torch has a kernel for samples of different lengths in one row."""
    size = value.shape[-1]
    is_usual = scaling is None or abs(scaling * size**0.5 - 1) < 1e-6
    return (
        value.dtype in (torch.float16, torch.bfloat16)
        and size <= 256
        and size % 8 == 0
        and _kernel.function is not None
        and (is_usual or _kernel.can_scale)
    )


def _is_grouped(query: Tensor, key: Tensor) -> bool:
    return query.shape[1] != key.shape[1]
