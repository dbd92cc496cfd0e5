"""What modifiers that compare layers of student and teacher have in common."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trainwright.recipes.distillation.base import LearnsFromTeacher
from trainwright.recipes.distillation.features import Features, feature_size, projection


class ComparesLayers(LearnsFromTeacher):
    """Sees what pairs of layers give out, the student's through a projection where one is wanted.

    Projections are trained with the model and live in checkpoints, never in the saved model.
    """

    def __init__(self, *, start_epoch: float, end_epoch: float, update_frequency: float) -> None:
        super().__init__(start_epoch=start_epoch, end_epoch=end_epoch, update_frequency=update_frequency)
        self._pairs: list[tuple[str, str]] = []
        self._projections: dict[str, nn.Module] = {}
        self._student: Features | None = None
        self._teacher: Features | None = None

    def pairs(self, model: nn.Module, teacher: nn.Module) -> list[tuple[str, str]]:
        """Names of the student's and the teacher's layers."""
        raise NotImplementedError

    def like(self, layer: nn.Module) -> nn.Module | None:
        """A layer whose kind decides how ``layer`` is projected; None: not at all."""
        raise NotImplementedError

    def combined(self, loss: Tensor, features: list[tuple[str, Tensor, Tensor]]) -> Tensor:
        """The loss, with (name, student's, teacher's) of every pair."""
        raise NotImplementedError

    def prepare_model(self, model: nn.Module) -> None:
        self._remove_hooks()
        self._projections = {}
        if self.teacher is None:
            return
        teacher = self.teacher.model
        self._pairs = self.pairs(model, teacher)
        self._student = Features(model, [own for own, _ in self._pairs], "student")
        self._teacher = Features(teacher, [other for _, other in self._pairs], "teacher")
        layers, others = dict(model.named_modules()), dict(teacher.named_modules())
        for own, other in self._pairs:
            kind = self.like(layers[own])
            if kind is None:
                continue
            sizes = feature_size(layers[own]), feature_size(others[other])
            if sizes[0] is None or sizes[1] is None:
                raise ValueError(
                    f"How many features {own!r} or {other!r} gives out is not known, so they cannot be projected: name "
                    "linear, convolution, embedding or norm layers, or train without a projection."
                )
            self._projections[own] = projection(own, kind, sizes[0], sizes[1]).to(_device_of(model))

    def extra_parameters(self) -> dict[str, Any]:
        return {f"{name}.projection": layer.weight for name, layer in self._projections.items()}

    def modify_loss(self, loss: Tensor, outputs: object, inputs: object) -> Any:
        answer = super().modify_loss(loss, outputs, inputs)
        if self._student is not None:
            # Also where this is not active: features hold on to the graph of the forward pass.
            self._student.take()
        return answer

    def with_teacher(self, loss: Tensor, outputs: object, inputs: object, answers: object) -> Any:
        assert self._student is not None
        assert self._teacher is not None
        own, theirs = self._student.take(), self._teacher.seen
        features = []
        for own_name, other in self._pairs:
            if own_name not in own or other not in theirs:
                raise ValueError(f"The layers {own_name!r} and {other!r} did not both run in this forward pass.")
            student, teacher = own[own_name], theirs[other]
            if self._student.is_cut_off(own_name, student):
                raise ValueError(
                    f"{own_name!r} is trained, but its output carries no gradient: gradient checkpointing with "
                    "use_reentrant=True hides it. Set gradient_checkpointing_kwargs={'use_reentrant': False}."
                )
            if own_name in self._projections:
                weight: Any = self._projections[own_name].weight
                student = self._projections[own_name](student.to(weight.dtype))
            if student.shape != teacher.shape:
                raise ValueError(
                    f"{own_name!r} gives {tuple(student.shape)}, the teacher's layer {tuple(teacher.shape)}: choose "
                    "layers of the same size, or let them be projected."
                )
            wide = torch.float64 if student.dtype == torch.float64 else torch.float32
            features.append((own_name, student.to(wide), teacher.to(wide)))
        return self.combined(loss, features)

    def end(self, site: object, epoch: float) -> None:
        self._remove_hooks()

    def finish_model(self, model: nn.Module) -> None:
        self._remove_hooks()

    def _remove_hooks(self) -> None:
        for features in (self._student, self._teacher):
            if features is not None:
                features.remove()
        self._student = self._teacher = None

    def tensors_to_save(self) -> dict[str, Any]:
        return {name: layer.weight for name, layer in self._projections.items()}

    def load_saved(self, tensors: dict[str, Any], values: dict[str, Any]) -> None:
        super().load_saved(tensors, values)
        with torch.no_grad():
            for name, tensor in tensors.items():
                if name in self._projections:
                    weight: Any = self._projections[name].weight
                    weight.copy_(tensor)


def _device_of(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))
