"""Tensors as JAX arrays and back. Nothing is shared: either side may change its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

_TYPES: dict[torch.dtype, Any] = {
    torch.bool: jnp.bool_,
    torch.uint8: jnp.uint8,
    torch.int8: jnp.int8,
    torch.int16: jnp.int16,
    torch.int32: jnp.int32,
    torch.int64: jnp.int64,
    torch.bfloat16: jnp.bfloat16,
    torch.float16: jnp.float16,
    torch.float32: jnp.float32,
    torch.float64: jnp.float64,
    torch.complex64: jnp.complex64,
    torch.complex128: jnp.complex128,
}
_BY_NAME = {np.dtype(kind).name: dtype for dtype, kind in _TYPES.items()}


def types_of(dtype: torch.dtype) -> Any:
    """JAX's type for torch's."""
    if dtype not in _TYPES:
        raise ValueError(f"engine='jax' has no arrays of {dtype}: convert the tensor first.")
    return np.dtype(_TYPES[dtype])


def torch_dtype(array: jax.Array) -> torch.dtype:
    """torch's type of the elements of ``array``."""
    return _BY_NAME[array.dtype.name]


def to_array(tensor: Tensor) -> jax.Array:
    """A copy. int64 and float64 stay so only where JAX's 64 bits are switched on."""
    kind, source = types_of(tensor.dtype), tensor.detach().cpu().resolve_neg().resolve_conj().contiguous()
    if tensor.dtype is torch.bfloat16:  # numpy has no such numbers of its own
        return jnp.array(source.view(torch.int16).numpy().view(kind), copy=True)
    return jnp.array(source.numpy(), copy=True)


def to_tensor(array: jax.Array) -> Tensor:
    """A copy."""
    host = np.array(array, copy=True)
    if host.dtype == types_of(torch.bfloat16):
        return torch.from_numpy(host.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(host)
