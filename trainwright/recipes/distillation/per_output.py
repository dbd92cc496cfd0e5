"""Distillation of any layers' outputs, with the choices of the newer recipes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from trainwright.config.registry import suggestion
from trainwright.recipes.distillation.layerwise import ComparesLayers

_TRANSFORMS: dict[str, Callable[..., Tensor]] = {
    "identity": lambda x: x,
    "softmax": lambda x, temperature=1.0, dim=-1: F.softmax(x / temperature, dim=dim),
    "log_softmax": lambda x, temperature=1.0, dim=-1: F.log_softmax(x / temperature, dim=dim),
    "normalize": lambda x, p=2.0, dim=-1, epsilon=1e-12: F.normalize(x, p=p, dim=dim, eps=epsilon),
}


def _kl(own: Tensor, wanted: Tensor, dim: int = -1, epsilon: float = 1e-12) -> Tensor:
    """Of probabilities: those of the teacher against those of the student."""
    return (wanted * ((wanted + epsilon).log() - (own + epsilon).log())).sum(dim).mean()


def _cross_entropy(own: Tensor, wanted: Tensor, dim: int = -1, epsilon: float = 1e-12) -> Tensor:
    return -(wanted * (own + epsilon).log()).sum(dim).mean()


def _square_head(own: Tensor, wanted: Tensor, epsilon: float = 1e-6) -> Tensor:
    return F.mse_loss(own, wanted) / (wanted.square().mean() + epsilon)


_COMPARISONS: dict[str, Callable[..., Tensor]] = {
    "l1_distance": F.l1_loss,
    "l2_distance": F.mse_loss,
    "inner_product": lambda own, wanted, dim=-1: -(own * wanted).sum(dim).mean(),
    "cosine_similarity": lambda own, wanted, dim=-1: (1 - F.cosine_similarity(own, wanted, dim=dim)).mean(),
    "kl_divergence": _kl,
    "cross_entropy": _cross_entropy,
    "square_head": _square_head,
}
_SHORT = {"l1": "l1_distance", "l2": "l2_distance", "cosine": "cosine_similarity"}


class OutputDistillationModifier(ComparesLayers):
    """``orig_scale * loss + distill_scale * comparison`` of the outputs of ``targets``, summed over them.

    ``targets`` are layers, or pairs [student's, teacher's]. Outputs go through ``projection`` ("linear" or "conv"; the
    student's alone) and ``transforms`` before they are compared.
    """

    def __init__(
        self,
        *,
        targets: Any,
        projection: str | None = None,
        projection_args: dict[str, Any] | None = None,
        transforms: str | list[str] | None = "softmax",
        transforms_args: Any = None,
        comparison: str = "kl_divergence",
        comparison_args: dict[str, Any] | None = None,
        orig_scale: float = 1.0,
        distill_scale: float = 1.0,
        start_epoch: float = -1.0,
        end_epoch: float = -1.0,
        update_frequency: float = -1.0,
    ) -> None:
        super().__init__(start_epoch=start_epoch, end_epoch=end_epoch, update_frequency=update_frequency)
        listed = [targets] if isinstance(targets, str) else list(targets)
        self.targets = [(item, item) if isinstance(item, str) else tuple(item) for item in listed]
        if not all(len(pair) == 2 for pair in self.targets):
            raise ValueError("targets are names of layers, or pairs [student's layer, teacher's layer].")
        if projection not in (None, "linear", "conv") or projection_args:
            raise ValueError("projection is 'linear', 'conv' or None, and takes no arguments.")
        self.projection = projection
        self.transforms = _transforms(transforms, transforms_args)
        name = _SHORT.get(comparison, comparison)
        if name not in _COMPARISONS:
            raise ValueError(
                f"comparison={comparison!r} is not one of {', '.join(_COMPARISONS)}"
                f"{suggestion(comparison, _COMPARISONS)}."
            )
        self.comparison, self.comparison_args = _COMPARISONS[name], dict(comparison_args or {})
        self.orig_scale, self.distill_scale = float(orig_scale), float(distill_scale)

    def pairs(self, model: nn.Module, teacher: nn.Module) -> list[tuple[str, str]]:
        return self.targets

    def like(self, layer: nn.Module) -> nn.Module | None:
        if self.projection is None:
            return None
        return nn.Conv2d(1, 1, 1) if self.projection == "conv" else nn.Linear(1, 1)

    def combined(self, loss: Tensor, features: list[tuple[str, Tensor, Tensor]]) -> Tensor:
        total = self.orig_scale * loss
        for _, student, teacher in features:
            for transform, options in self.transforms:
                student, teacher = transform(student, **options), transform(teacher, **options)
            total = total + self.distill_scale * self.comparison(student, teacher, **self.comparison_args)
        return total


def _transforms(names: str | list[str] | None, options: Any) -> list[tuple[Callable[..., Tensor], dict[str, Any]]]:
    listed = [] if names is None else [names] if isinstance(names, str) else list(names)
    given = [options or {}] * len(listed) if options is None or isinstance(options, dict) else list(options)
    if len(given) != len(listed):
        raise ValueError("transforms_args is one dict, or a list as long as transforms.")
    for name in listed:
        if name not in _TRANSFORMS:
            raise ValueError(
                f"transforms: {name!r} is not one of {', '.join(_TRANSFORMS)}{suggestion(name, _TRANSFORMS)}."
            )
    return [(_TRANSFORMS[name], dict(own or {})) for name, own in zip(listed, given, strict=True)]
