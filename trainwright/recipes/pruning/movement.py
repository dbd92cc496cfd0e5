"""Movement pruning: the weights that training moves towards zero go."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainwright.core.modifier import Site
from trainwright.recipes.pruning.base import dense_gradient
from trainwright.recipes.pruning.gradual import GradualPruningModifier, magnitudes

#: Only the order of scores matters; the factor keeps sums of half-precision products in range.
_RATE = 0.01


@dataclass(kw_only=True, eq=False)
class MovementPruningModifier(GradualPruningModifier):
    """Scores add up ``-0.01 * weight * gradient`` at each step from the beginning of the run.

    The gradient is that of the whole step, after clipping, so every process comes to the same scores. Where no step has
    been made yet, magnitudes decide.

    >>> MovementPruningModifier(init_sparsity=0.05, final_sparsity=0.8, end_epoch=10).inter_func
    'cubic'
    """

    kinds = ("mask", "score")

    global_sparsity: bool | None = field(default=None, init=False)

    @torch.no_grad()
    def before_update(self, site: Site) -> None:
        if self.has_ended:
            return
        scores = self.kept["score"]
        for name, weight in self.weights(site).items():
            if name not in scores:
                dtype = weight.dtype if weight.dtype == torch.float64 else torch.float32
                scores[name] = torch.zeros_like(weight, dtype=dtype, memory_format=torch.contiguous_format)
            gradient = dense_gradient(weight)
            if gradient is None:
                continue
            change = weight.to(scores[name].dtype) * gradient.to(scores[name].dtype)
            scores[name].sub_(torch.where(change.isfinite().all(), change, 0), alpha=_RATE)

    def scores(self, site: Site) -> dict[str, Tensor]:
        weights = self.weights(site)
        return dict(self.kept["score"]) or magnitudes(weights)

    def end(self, site: Site, epoch: float) -> None:
        super().end(site, epoch)
        self.kept["score"] = {}
