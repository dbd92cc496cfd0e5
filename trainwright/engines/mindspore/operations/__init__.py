"""Operations of torch (ATen) on MindSpore's arrays. To add one: a function in the file of its topic, a line in its
``OPERATIONS``, and a case in ``tests/engines/mindspore/cases``."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from mindspore import Tensor as Array
from mindspore import ops

from trainwright.engines.mindspore.arrays import torch_type
from trainwright.engines.mindspore.operations import (
    activation,
    arithmetic,
    creation,
    image,
    indexing,
    matrix,
    reduction,
    shape,
)
from trainwright.engines.mindspore.operations.halves import rounded_once


def without_gradients_of_whole_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` whose arguments of whole numbers and truth values are no path for gradients.

    A compiled graph would carry zeros along such paths, through kernels that do not know these types.
    """

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*map(_still, args), **{name: _still(value) for name, value in kwargs.items()})

    return run


def _still(value: object) -> Any:
    if isinstance(value, Array):
        return value if torch_type(value).is_floating_point else ops.stop_gradient(value)
    return [_still(one) for one in value] if isinstance(value, list | tuple) else value


#: Statistics of these are float32 whatever their inputs are: they widen what they need themselves.
_WIDEN_THEMSELVES = (
    torch.ops.aten.native_layer_norm.default,
    torch.ops.aten._native_batch_norm_legit_functional.default,
    torch.ops.aten._native_batch_norm_legit.no_stats,
    torch.ops.aten._native_batch_norm_legit_no_training.default,
    torch.ops.aten.native_group_norm.default,
    torch.ops.aten._softmax.default,
    torch.ops.aten._log_softmax.default,
)


def _in_table(overload: object, function: Callable[..., Any]) -> Callable[..., Any]:
    safe = without_gradients_of_whole_numbers(function)
    return safe if overload in _WIDEN_THEMSELVES else rounded_once(safe)


#: ATen overload -> the same on MindSpore's arrays.
OPERATIONS: dict[Any, Callable[..., Any]] = {
    overload: _in_table(overload, function)
    for topic in (arithmetic, activation, shape, reduction, indexing, matrix, image, creation)
    for overload, function in topic.OPERATIONS.items()
}
