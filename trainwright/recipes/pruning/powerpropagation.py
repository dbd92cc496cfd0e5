"""Powerpropagation: weights are powers of what is trained, so that small ones stay small."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainwright.core.modifier import Site
from trainwright.recipes.pruning.per_weight import PerWeightModifier, ignore_frequency
from trainwright.recipes.selecting import select_parameters


@dataclass(kw_only=True, eq=False)
class PowerpropagationModifier(PerWeightModifier):
    """Trains ``t`` where the weight is ``t * |t| ** (alpha - 1)``.

    The model always holds the weight itself, so it is a plain model at every moment. For the update ``t`` takes its
    place, with the gradient that ``t`` has by the chain rule. ``strict`` refuses names in ``params`` that fit nothing.

    >>> PowerpropagationModifier(start_epoch=0, end_epoch=100, alpha=2.0).strict
    True
    """

    kinds = ("trained",)

    alpha: float = 1.0
    strict: bool = True

    def __post_init__(self) -> None:
        ignore_frequency(self)
        super().__post_init__()
        alpha, self.alpha = self.alpha, float(self.alpha)
        if not self.alpha >= 1:
            raise ValueError(f"alpha={alpha} must be 1 or more: below 1 gradients grow without bound near zero.")

    def chosen_parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        if self.strict:
            return super().chosen_parameters(model)
        chosen: dict[str, nn.Parameter] = {}
        for pattern in [self.params] if isinstance(self.params, str) else self.params or []:
            with suppress(ValueError):
                chosen.update(select_parameters(model, pattern))
        return chosen

    def begin(self, site: Site, epoch: float) -> None:
        self.kept["trained"] = {name: self._root(weight.detach()) for name, weight in self.weights(site).items()}

    def end(self, site: Site, epoch: float) -> None:
        self.kept["trained"] = {}

    def _power(self, trained: Tensor) -> Tensor:
        return trained * trained.abs().pow(self.alpha - 1)

    def _root(self, weight: Tensor) -> Tensor:
        return (weight.sign() * weight.abs().pow(1 / self.alpha)).contiguous()

    def _current(self, name: str, weight: nn.Parameter) -> Tensor:
        """What is trained now; where another modifier changed the weight meanwhile, its root."""
        trained = self.kept["trained"][name]
        return torch.where(self._power(trained) == weight, trained, self._root(weight))

    def _transformed(self, site: Site) -> list[tuple[str, nn.Parameter]]:
        weights = self.weights(site)
        return [(name, weights[name]) for name in self.kept["trained"]]

    @torch.no_grad()
    def shape_gradients(self, site: Site) -> None:
        for name, weight in self._transformed(site):
            if weight.grad is not None:
                weight.grad.mul_(self.alpha * self._current(name, weight).abs().pow(self.alpha - 1))

    @torch.no_grad()
    def before_update(self, site: Site) -> None:
        for name, weight in self._transformed(site):
            weight.copy_(self._current(name, weight))

    @torch.no_grad()
    def after_update(self, site: Site) -> None:
        for name, weight in self._transformed(site):
            trained = self.kept["trained"][name]
            trained.copy_(weight)
            weight.copy_(self._power(trained))
