"""The length of every sample, found without reading the samples wherever the dataset makes that possible."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger("trainwright")

# Rows of arrow data looked at together: large enough to be fast, small enough not to hold a copy of the column.
_ROWS_AT_ONCE = 10_000


def sample_lengths(dataset: object, column_name: str = "length", model_input_name: str = "input_ids") -> list[int]:
    """The length of each sample, by index.

    In order of preference: the column ``column_name``, read as a whole; the list lengths of the arrow column
    ``model_input_name``; a walk over every sample, which is announced. Ask before unused columns are removed: the
    length column is one of them.
    """
    columns = getattr(dataset, "column_names", None)
    # `DatasetDict.column_names` is a mapping; its parts are the datasets, not it.
    if isinstance(columns, list):
        if column_name in columns:
            return _checked(column_values(dataset, column_name), column_name)
        if not makes_columns_on_the_fly(dataset):
            if model_input_name not in columns:
                raise _no_length(model_input_name, column_name, f"has the columns {', '.join(columns)}")
            found = _arrow_list_lengths(dataset, model_input_name)
            if found is not None:
                return found
    return _walk(dataset, column_name, model_input_name)


def makes_columns_on_the_fly(dataset: object) -> bool:
    """Whether a ``with_transform``/``set_transform`` function of Hugging Face datasets builds the samples."""
    dataset_format = getattr(dataset, "format", None)
    return isinstance(dataset_format, Mapping) and dataset_format.get("type") == "custom"


def column_values(dataset: Any, name: str) -> list[Any]:
    """A column of a dataset, whatever format or transform it is read with."""
    if hasattr(dataset, "with_format") and hasattr(dataset, "select_columns"):
        # Through arrow, since a torch format or a transform would otherwise run over every row.
        return dataset.select_columns([name]).with_format("arrow")[:].column(name).to_pylist()
    return list(dataset[name])


def _checked(values: list[Any], column_name: str) -> list[int]:
    try:
        return [int(value) for value in values]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the column {column_name!r} must hold one whole number per sample to be used as lengths; "
            "name another column with length_column_name"
        ) from error


def _arrow_list_lengths(dataset: object, name: str) -> list[int] | None:
    """List lengths from arrow's offsets, or None where the column is no list of arrow's."""
    if not (hasattr(dataset, "with_format") and hasattr(dataset, "select_columns") and hasattr(dataset, "iter")):
        return None
    import pyarrow as pa  # comes with datasets, whose object this is
    import pyarrow.compute as pc

    lengths: list[int | None] = []
    view = dataset.select_columns([name]).with_format("arrow")
    try:
        for table in view.iter(batch_size=_ROWS_AT_ONCE):
            # `getattr`, because arrow makes its compute functions at import time and no type checker sees them.
            lengths += getattr(pc, "list_value_length")(table.column(name)).to_pylist()  # noqa: B009
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return None
    known = [length for length in lengths if length is not None]
    if len(known) < len(lengths):
        raise ValueError(f"sample {lengths.index(None)} has no {name!r} (it is null), so it has no length")
    return known


def _walk(dataset: Any, column_name: str, model_input_name: str) -> list[int]:
    count = len(dataset)
    in_memory = isinstance(dataset, (list, tuple))
    logger.log(
        logging.INFO if in_memory else logging.WARNING,
        "Reading all %d samples once to learn their lengths; a Hugging Face dataset with a column %r (see "
        "length_column_name) would make this unnecessary.",
        count,
        column_name,
    )
    return [_length_of(dataset[index], index, column_name, model_input_name) for index in range(count)]


def _length_of(sample: object, index: int, column_name: str, model_input_name: str) -> int:
    fields = sample if isinstance(sample, Mapping) else getattr(sample, "__dict__", {})
    if column_name in fields:
        return int(fields[column_name])
    if model_input_name not in fields:
        held = f"holds {', '.join(map(str, fields))}" if fields else f"is a {type(sample).__name__}"
        raise _no_length(model_input_name, column_name, f"{held} at index {index}")
    return len(fields[model_input_name])


def _no_length(model_input_name: str, column_name: str, found: str) -> ValueError:
    return ValueError(
        f"the length of a sample is that of its {model_input_name!r}, but the dataset {found}; add a column "
        f"{column_name!r} with the lengths, name yours with length_column_name, or use another train_sampling_strategy"
    )
