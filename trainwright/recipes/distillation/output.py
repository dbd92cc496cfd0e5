"""Knowledge distillation: the student's outputs follow the teacher's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trainwright.recipes.distillation.base import LearnsFromTeacher

_IGNORED = -100


class DistillationModifier(LearnsFromTeacher):
    """``(1 - hardness) * loss + hardness * T² * KL(teacher || student)``, both outputs softened by T = ``temperature``.

    ``distill_output_keys`` says which outputs are compared; without it the logits. Positions whose label is -100 do not
    count, as they do not count in the loss itself.
    """

    def __init__(
        self,
        *,
        hardness: float = 0.5,
        temperature: float = 2.0,
        distill_output_keys: list[Any] | None = None,
        teacher_input_keys: list[str] | None = None,
        start_epoch: float = -1.0,
        end_epoch: float = -1.0,
        update_frequency: float = -1.0,
        log_types: object = "__ALL__",
    ) -> None:
        super().__init__(
            start_epoch=start_epoch,
            end_epoch=end_epoch,
            update_frequency=update_frequency,
            teacher_input_keys=teacher_input_keys,
        )
        self.hardness, self.temperature = float(hardness), float(temperature)
        if not 0 <= self.hardness <= 1:
            raise ValueError(f"hardness={hardness} must be between 0 (labels only) and 1 (teacher only).")
        if self.temperature <= 0:
            raise ValueError(f"temperature={temperature} must be more than 0.")
        self.distill_output_keys = distill_output_keys

    def with_teacher(self, loss: Tensor, outputs: object, inputs: object, answers: object) -> Tensor:
        student, teacher = named_outputs(outputs), named_outputs(answers)
        pairs = self._pairs(student, teacher)
        labels = inputs.get("labels") if isinstance(inputs, Mapping) else None
        parts = [self._divergence(own, student[own], teacher[other], labels) for own, other in pairs]
        distilled = sum(parts[1:], parts[0]) / len(parts)
        if self.hardness == 1:
            return distilled
        return (1 - self.hardness) * loss + self.hardness * distilled

    def _pairs(self, student: dict[Any, Tensor], teacher: dict[Any, Tensor]) -> list[tuple[Any, Any]]:
        """Which output of the student follows which of the teacher."""
        if self.distill_output_keys is not None:
            for key in self.distill_output_keys:
                if key not in student or key not in teacher:
                    raise ValueError(
                        f"distill_output_keys: {key!r} is not among the outputs of both models; the student has "
                        f"{list(student)}, the teacher {list(teacher)}."
                    )
            return [(key, key) for key in self.distill_output_keys]
        shared = [key for key in student if key in teacher]
        keys = [key for key in shared if "logits" in str(key)] or shared
        mains = _main(student), _main(teacher)
        if not keys and None not in mains:
            # One model gives a tensor, the other names it.
            return [mains]
        if not keys:
            raise ValueError(
                f"Student and teacher have no output in common: the student has {list(student)}, the teacher "
                f"{list(teacher)}. Name them in distill_output_keys."
            )
        return [(key, key) for key in keys]

    def _divergence(self, key: object, student: Tensor, teacher: Tensor, labels: object) -> Tensor:
        if student.shape != teacher.shape:
            raise ValueError(
                f"Output {key!r}: the student gives {tuple(student.shape)}, the teacher {tuple(teacher.shape)}. A "
                "teacher has to have the same classes; columns for its own tokenizer begin with 'distill_teacher:'."
            )
        counted = None
        if isinstance(labels, Tensor) and student.ndim > 2 and labels.shape == student.shape[:-1]:
            if self.shifts_labels:
                student, teacher, labels = student[..., :-1, :], teacher[..., :-1, :], labels[..., 1:]
            counted = labels != _IGNORED
        return divergence(student, teacher, self.temperature, counted)


def _main(outputs: dict[Any, Tensor]) -> Any:
    """The name of the output that is the model's answer; None where that is not clear."""
    return next((key for key in ("logits", 0) if key in outputs), next(iter(outputs)) if len(outputs) == 1 else None)


def divergence(student: Tensor, teacher: Tensor, temperature: float, counted: Tensor | None = None) -> Tensor:
    """``T² * KL(teacher || student)`` of softened logits, the mean over rows (those that are ``counted``).

    >>> logits = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    >>> float(divergence(logits, logits, 2.0))
    0.0
    """
    wide = torch.float64 if student.dtype == torch.float64 else torch.float32
    own = F.log_softmax(student.to(wide) / temperature, dim=-1)
    wanted = F.log_softmax(teacher.to(wide) / temperature, dim=-1)
    rows = F.kl_div(own, wanted, reduction="none", log_target=True).sum(-1)
    if counted is None:
        return rows.mean() * temperature**2
    return rows.masked_fill(~counted, 0.0).sum() / counted.sum().clamp(min=1) * temperature**2


def named_outputs(outputs: object) -> dict[Any, Tensor]:
    """Outputs that can be compared, by name or position: tensors of real numbers with at least two dimensions."""
    if isinstance(outputs, Tensor):
        outputs = {0: outputs}
    elif dataclasses.is_dataclass(outputs) and not isinstance(outputs, (type, Mapping)):
        outputs = {field.name: getattr(outputs, field.name) for field in dataclasses.fields(outputs)}
    elif not isinstance(outputs, Mapping):
        outputs = dict(enumerate(outputs if isinstance(outputs, (tuple, list)) else ()))
    return {
        key: value
        for key, value in outputs.items()
        if isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1
    }
