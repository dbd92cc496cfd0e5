"""What modifiers that learn from a teacher have in common."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from trainwright.core.modifier import Modifier
from trainwright.recipes.distillation.teacher import Teacher


class LearnsFromTeacher(Modifier):
    """Holds a teacher; without one it does nothing, and says so before training if it was not switched off."""

    def __init__(
        self,
        *,
        start_epoch: float,
        end_epoch: float,
        update_frequency: float = -1.0,
        teacher_input_keys: list[str] | None = None,
    ) -> None:
        if update_frequency != -1:
            raise ValueError(
                f"update_frequency={update_frequency}: a teacher is asked in every step; leave it out, or use -1."
            )
        super().__init__(start_epoch=start_epoch, end_epoch=end_epoch)
        self.teacher_input_keys = teacher_input_keys
        self.teacher: Teacher | None = None
        #: Hash of the teacher, where it is a copy of the model before training: the same after a resume, or refused.
        self._own_hash: str | None = None
        #: Whether the student compares position i with label i + 1.
        self.shifts_labels = False

    def set_teacher(
        self, teacher: Teacher | nn.Module | None, *, own_hash: str | None = None, shifts_labels: bool = False
    ) -> None:
        """Learn from ``teacher``; None switches this off."""
        self.teacher = Teacher(teacher, self.teacher_input_keys) if isinstance(teacher, nn.Module) else teacher
        self._own_hash = own_hash
        self.shifts_labels = shifts_labels

    def values_to_save(self) -> dict[str, Any]:
        return {"own_hash": self._own_hash}

    def load_saved(self, tensors: dict[str, Any], values: dict[str, Any]) -> None:
        saved = values.get("own_hash")
        if saved is not None and self._own_hash is not None and saved != self._own_hash:
            raise ValueError(
                "teacher='self' is the model as it was before training, and the model given now has other weights than "
                "the one this run began with: build it from the same weights, or pass the teacher as a module."
            )

    def modify_loss(self, loss: Tensor, outputs: object, inputs: object) -> Any:
        if self.teacher is None or not self.is_active:
            return loss
        return self.with_teacher(loss, outputs, inputs, self.teacher(inputs))

    def with_teacher(self, loss: Tensor, outputs: object, inputs: object, answers: object) -> Any:
        """The loss, once the teacher has answered."""
        raise NotImplementedError
