"""Distillation layer by layer: the student's features follow the teacher's."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from trainwright.recipes.distillation.layerwise import ComparesLayers


class PerLayerDistillationModifier(ComparesLayers):
    """``loss + gain * sum of mean((projected student - teacher)²)`` over pairs of layers.

    Layers pair by position in ``student_layer_names`` and ``teacher_layer_names``; one list means the same names in
    both models, none all convolution and linear layers. ``normalize`` divides each term by the teacher's mean square,
    that of the micro-batch at hand: with it the value depends on how a batch was cut.
    """

    def __init__(
        self,
        *,
        gain: float = 1.5,
        start_epoch: float = -1.0,
        end_epoch: float = -1.0,
        update_frequency: float = -1.0,
        normalize: bool = True,
        student_layer_names: list[str] | None = None,
        teacher_layer_names: list[str] | None = None,
        project_features: bool = True,
        epsilon: float = 1e-6,
        log_types: object = "__ALL__",
    ) -> None:
        super().__init__(start_epoch=start_epoch, end_epoch=end_epoch, update_frequency=update_frequency)
        if student_layer_names and teacher_layer_names and len(student_layer_names) != len(teacher_layer_names):
            raise ValueError(
                f"student_layer_names has {len(student_layer_names)} layers and teacher_layer_names "
                f"{len(teacher_layer_names)}: they pair by position."
            )
        self.gain, self.normalize, self.epsilon = float(gain), normalize, float(epsilon)
        self.project_features = project_features
        self.student_layer_names = student_layer_names or teacher_layer_names
        self.teacher_layer_names = teacher_layer_names or student_layer_names

    def pairs(self, model: nn.Module, teacher: nn.Module) -> list[tuple[str, str]]:
        own = self.student_layer_names or _comparable(model)
        theirs = self.teacher_layer_names or _comparable(teacher)
        if len(own) != len(theirs):
            raise ValueError(
                f"The student has {len(own)} convolution and linear layers, the teacher {len(theirs)}: pair them with "
                "student_layer_names and teacher_layer_names."
            )
        return list(zip(own, theirs, strict=True))

    def like(self, layer: nn.Module) -> nn.Module | None:
        return layer if self.project_features else None

    def combined(self, loss: Tensor, features: list[tuple[str, Tensor, Tensor]]) -> Tensor:
        for _, student, teacher in features:
            distance = F.mse_loss(student, teacher)
            if self.normalize:
                distance = distance / (teacher.square().mean() + self.epsilon)
            loss = loss + self.gain * distance
        return loss


def _comparable(model: nn.Module) -> list[str]:
    return [name for name, layer in model.named_modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]
