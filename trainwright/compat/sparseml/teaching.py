"""Teachers of modifiers in a loop that somebody wrote by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from trainwright.core.modifier import TEACHER_COLUMNS
from trainwright.recipes.distillation.base import LearnsFromTeacher
from trainwright.recipes.distillation.teacher import SELF, Teacher, fingerprint, resolve_teacher


def engage(learners: Sequence[LearnsFromTeacher], model: nn.Module, teacher: object) -> None:
    """Give ``teacher`` (a module, a folder, 'self', 'disable') to modifiers that learn from one."""
    if teacher is None:
        raise ValueError(
            f"The recipe has a {type(learners[0]).__name__}, which needs a teacher: pass distillation_teacher= a "
            "module, the folder of a saved model, 'self' or 'disable'."
        )
    found = resolve_teacher(teacher, model)
    own_hash = fingerprint(found) if found is not None and isinstance(teacher, str) and teacher == SELF else None
    for learner in learners:
        keys = learner.teacher_input_keys
        learner.set_teacher(None if found is None else Teacher(found, keys), own_hash=own_hash)


def for_teacher(inputs: object, teacher_inputs: dict[str, Any] | None) -> Any:
    """The student's inputs, with those of the teacher beside them."""
    if teacher_inputs is not None:
        own = dict(inputs) if isinstance(inputs, Mapping) else {}
        return {**own, **{f"{TEACHER_COLUMNS}{name}": value for name, value in teacher_inputs.items()}}
    # Of several arguments a teacher leaves the last out, which is a label in a batch; here all are inputs.
    return (*inputs, None) if isinstance(inputs, (tuple, list)) else inputs
