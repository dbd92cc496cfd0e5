"""Operations of torch (ATen) on MindSpore's arrays. To add one: a function in the file of its topic, a line in its
``OPERATIONS``, and a case in ``tests/engines/mindspore/cases``."""

from collections.abc import Callable
from functools import wraps
from typing import Any

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


#: ATen overload -> the same on MindSpore's arrays.
OPERATIONS: dict[Any, Callable[..., Any]] = {
    overload: without_gradients_of_whole_numbers(function)
    for topic in (arithmetic, activation, shape, reduction, indexing, matrix, image, creation)
    for overload, function in topic.OPERATIONS.items()
}
