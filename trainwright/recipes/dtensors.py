"""What is to be spread over processes as a weight is (FSDP's DTensors)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from trainwright.core.dtensors import is_dtensor


def placed(tensor: Tensor, weight: Any) -> Tensor:
    """``tensor``, which every process has whole, where ``weight`` is and in the parts that it is in."""
    if not is_dtensor(weight):
        return tensor.to(weight.device)
    if is_dtensor(tensor):
        return tensor
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(weight.shape, weight.device_mesh, weight.placements)
    place = tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
    part = tensor[place].to(weight.device).contiguous()
    return DTensor.from_local(
        part,
        weight.device_mesh,
        weight.placements,
        run_check=False,
        shape=weight.shape,
        stride=weight.stride(),
    )
