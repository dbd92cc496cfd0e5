"""Lists, arrays and data frames, cut into parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from trainwright.config.backends import rank_from_environment


def get_array_partition(array: Any, n_partitions: int, get: int) -> Any:
    """Part number ``get`` of ``n_partitions``; the first ones get one more where they cannot be equal.

    >>> get_array_partition([0, 1, 2, 3, 4], 2, 0)
    [0, 1, 2]
    """
    size, more = divmod(len(array), n_partitions)
    start = get * size + min(get, more)
    return array[start : start + size + (get < more)]


def divide_list(lst: list[Any], parts: int) -> list[list[Any]]:
    """All parts of a list.

    >>> divide_list([0, 1, 2, 3, 4], 2)
    [[0, 1, 2], [3, 4]]
    """
    return [get_array_partition(lst, parts, number) for number in range(parts)]


def iterbatch(lst: Sequence[Any], batch_size: int) -> Iterator[Any]:
    """``batch_size`` elements after another; the last may be fewer."""
    for start in range(0, len(lst), batch_size):
        yield lst[start : start + batch_size]


def divide_into_batches(lst: Sequence[Any], batch_size: int) -> list[Any]:
    """The same as a list.

    >>> divide_into_batches([0, 1, 2, 3, 4], 2)
    [[0, 1], [2, 3], [4]]
    """
    return list(iterbatch(lst, batch_size))


def prepare_array(array: Any, even: bool = False) -> Any:
    """This process's part of a list, an array or a tensor; ``even`` repeats the last element so that all are equal."""
    if not hasattr(array, "__len__"):
        raise ValueError(f"prepare_array takes lists, arrays and tensors, not a {type(array).__name__}.")
    place = rank_from_environment()
    missing = -len(array) % place.world_size if even else 0
    if missing and isinstance(array, torch.Tensor):
        array = torch.cat([array, array[-1:].expand(missing, *array.shape[1:])])
    elif missing and isinstance(array, np.ndarray):
        array = np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])
    elif missing:
        array = [*array, *[array[-1]] * missing]
    return get_array_partition(array, place.world_size, place.rank)


def prepare_dataframe(df: Any, even: bool = False) -> tuple[Any, int]:
    """This process's rows of a pandas data frame, and how many rows were repeated to make all parts equal."""
    if not hasattr(df, "iloc"):
        raise ValueError(f"prepare_dataframe takes a pandas DataFrame, not a {type(df).__name__}.")
    world_size = rank_from_environment().world_size
    rows = prepare_array(list(range(len(df))), even)
    return df.iloc[rows], -len(df) % world_size if even else 0


def prepare(*objs: Any, even: bool = False) -> Any:
    """This process's part of each object; what has no length stays as it is."""
    parts: list[Any] = []
    for one in objs:
        if hasattr(one, "iloc"):
            parts.append(prepare_dataframe(one, even))
        else:
            parts.append(prepare_array(one, even) if hasattr(one, "__len__") else one)
    return parts if len(parts) > 1 else parts[0]
