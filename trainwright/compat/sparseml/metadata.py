"""``metadata_args``: names of arguments that are written into the saved recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from trainwright.recipes.language.metadata import metadata_from


def metadata_of(names: Sequence[str] | None, args: object, data_args: object) -> dict[str, Any] | None:
    """What ``args`` and ``data_args`` say by these names; None where none were asked for.

    >>> metadata_of(["split"], None, {"split": "train"})["split"]
    'train'
    """
    if not names:
        return None
    sources = [source for source in (args, data_args) if source is not None]
    twice = [name for name in names if len(sources) > 1 and all(_has(source, name) for source in sources)]
    if twice and not isinstance(names, str):
        raise ValueError(f"metadata_args: {', '.join(twice)} is in args and in data_args: rename it in one of them.")
    return metadata_from(names, *sources)


def _has(source: object, name: str) -> bool:
    if isinstance(source, Mapping):
        return name in source
    known = {field.name for field in fields(source)} if is_dataclass(source) else vars(source)
    return name in known
