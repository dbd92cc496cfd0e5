"""Columns that only a teacher takes: samples carry them beside the student's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainwright.core.modifier import TEACHER_COLUMNS

Collate = Callable[[list[Any]], Any]


class TeacherColumnsCollator:
    """Collates the student's columns with ``collate`` and the teacher's, without their prefix, with ``whole``.

    ``is_wanted=False`` leaves the teacher's out, for evaluation.

    >>> both = TeacherColumnsCollator(lambda rows: {"n": len(rows)}, list, is_wanted=False)
    >>> both([{"x": 1, "distill_teacher:x": 2}])
    {'n': 1}
    """

    def __init__(self, collate: Collate, whole: Collate, *, is_wanted: bool = True) -> None:
        self.collate, self.whole, self.is_wanted = collate, whole, is_wanted

    def __call__(self, features: list[Any]) -> Any:
        if not features or not isinstance(features[0], Mapping):
            return self.collate(features)
        marked = [name for name in features[0] if str(name).startswith(TEACHER_COLUMNS)]
        if not marked:
            return self.collate(features)
        own = [{name: value for name, value in row.items() if name not in marked} for row in features]
        batch = self.collate(own)
        if not self.is_wanted:
            return batch
        theirs = [{name.removeprefix(TEACHER_COLUMNS): row[name] for name in marked} for row in features]
        collated = self.whole(theirs)
        return {**batch, **{f"{TEACHER_COLUMNS}{name}": value for name, value in collated.items()}}
