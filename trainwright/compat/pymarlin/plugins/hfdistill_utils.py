"""Distillation in the plugins: a student with some of the teacher's layers learns from its outputs."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trainwright.recipes.distillation.output import divergence

_LOSSES = ("logits", "labels")


@dataclass
class DistillationArguments:
    """The section ``distill``."""

    enable: bool = False
    student_model_config_path: str | None = None
    student_model_config_file: str | None = None
    student_model_path: str | None = None
    student_model_file: str | None = None
    #: Of the teacher's layers, those that the student has.
    student_layers: list[int] = field(default_factory=lambda: [0, 6, 11])
    #: "logits": what the teacher says; "labels": the loss that the student has by itself.
    loss_types: list[str] = field(default_factory=lambda: ["logits"])
    loss_weights: list[float] = field(default_factory=lambda: [1])
    temperature: float = 1

    def __post_init__(self) -> None:
        if not self.enable:
            return
        others = [name for name in self.loss_types if name not in _LOSSES]
        if others:
            raise ValueError(
                f"distill.loss_types has {', '.join(others)}; here there are {', '.join(_LOSSES)}. A recipe with "
                "PerLayerDistillationModifier compares layers (docs/modifiers.md)."
            )
        if len(self.loss_weights) != len(self.loss_types):
            raise ValueError("distill.loss_weights needs one number for each of distill.loss_types.")
        if self.student_model_path is not None:
            raise ValueError(
                "distill.student_model_path is not here: the student is made of the teacher's layers "
                "(distill.student_layers). For a student of its own use a recipe with DistillationModifier."
            )


def build_distill_module(base: type[Any]) -> type[Any]:
    """The module ``base`` with a teacher: ``hf_model`` or ``model_path`` is the teacher, ``model`` the student."""

    class DistillHfModule(base):
        def __init__(self, distill_args: DistillationArguments, *module_args: Any) -> None:
            # First: the model is made by the constructor.
            self.distill_args = distill_args
            super().__init__(*module_args)

        def setup_model(self, automodel_class: Any) -> None:
            super().setup_model(automodel_class)
            # Not a part of the module: it is not trained, and a checkpoint need not hold it.
            self.__dict__["teacher"] = copy.deepcopy(self.model).eval().requires_grad_(False)
            keep_layers(self.model, self.args.model_args.encoder_key, self.distill_args.student_layers)
            self.model_config = self.model.config

        def train_step(self, global_step: int, batch: Any, device: Any) -> Any:
            batch = batch.to(device)
            outputs = self.model(**batch)
            with torch.no_grad():
                wanted = self.teacher.to(device)(**batch).logits
            counted = batch["labels"] != -100 if batch["labels"].shape == wanted.shape[:-1] else None
            losses = {"labels": outputs.loss}
            losses["logits"] = divergence(outputs.logits, wanted, self.distill_args.temperature, counted)
            settings = self.distill_args
            return sum(
                weight * losses[name] for name, weight in zip(settings.loss_types, settings.loss_weights, strict=True)
            )

    return DistillHfModule


def keep_layers(model: Any, encoder_key: str, layers: list[int]) -> None:
    """Leave only some of the encoder's layers in ``model``; all of them where none is named."""
    if not layers:
        return
    encoder = getattr(getattr(model, encoder_key, None), "encoder", None)
    if encoder is None or not hasattr(encoder, "layer"):
        raise ValueError(
            f"model.encoder_key={encoder_key!r}: {type(model).__name__} has no {encoder_key}.encoder.layer. Name the "
            "part with the layers, or set distill.student_layers to [] to keep them all."
        )
    if max(layers) >= len(encoder.layer):
        raise ValueError(f"distill.student_layers={layers}: the teacher has {len(encoder.layer)} layers, from 0 on.")
    encoder.layer = nn.ModuleList(encoder.layer[number] for number in layers)
    model.config.num_hidden_layers = len(layers)
