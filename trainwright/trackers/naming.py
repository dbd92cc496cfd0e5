"""Names of values in the services: the same in all of them, so that curves can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainwright.core.tracker import scalars


class Exact(str):
    """A name that services show as it is."""

    __slots__ = ()


def tag_of(name: str) -> str:
    """Hugging Face's names; those that are :class:`Exact` stay what they are.

    >>> tag_of("eval_loss"), tag_of("loss"), tag_of("test_accuracy")
    ('eval/loss', 'train/loss', 'test/accuracy')
    """
    if isinstance(name, Exact):
        return str(name)
    for split in ("eval", "test"):
        if name.startswith(f"{split}_"):
            return f"{split}/{name.removeprefix(f'{split}_')}"
    return f"train/{name}"


def tagged(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among ``values`` under their names in the services.

    >>> tagged({"loss": 0.5, "note": "text"})
    {'train/loss': 0.5}
    """
    return {tag_of(name): value for name, value in scalars(values).items()}
