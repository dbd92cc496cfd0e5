"""Weights that are moved to where the loss is higher, for a second pass: FGM and SAM."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.core.modifier import Site
from trainwright.engines.torch.loss_functions.base import check_number
from trainwright.engines.torch.regularisers.base import Regulariser


class Perturbing(Regulariser):
    """A second pass over each micro-batch, with some weights moved along the gradient of the first."""

    joins_samples = "weights are moved along the gradient of one batch"
    one_process = True
    passes_again = moves_weights = True
    #: Whether the gradient of the first pass stays, and that of the second is added.
    keeps_first = False

    def __init__(self, length: float) -> None:
        super().__init__()
        self._length = float(length)

    def moved(self, model: nn.Module) -> list[Tensor]:
        """The weights that are moved."""
        raise NotImplementedError

    def around_pass(self, site: Site, run: Callable[[], Any]) -> Any:
        trained = [one for one in site.model.parameters() if one.requires_grad]
        moved = self.moved(site.model)
        before = [None if one.grad is None else one.grad.clone() for one in trained]
        loss = run()
        own = {
            one: one.grad if earlier is None else one.grad - earlier
            for one, earlier in zip(trained, before, strict=True)
            if one.grad is not None
        }
        steps = {one: own[one] for one in moved if one in own}
        if not steps:
            return loss
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(step) for step in steps.values()]))
        # No slope, or none that is finite: no direction to go in, and the step is judged by what the first pass gave.
        factor = torch.where(norm.isfinite() & (norm > 0), self._length / norm, 0.0)
        kept = {one: one.detach().clone() for one in steps}
        # Nobody may copy the weights for a checkpoint while they are elsewhere.
        with site.changing():
            try:
                with torch.no_grad():
                    for one, step in steps.items():
                        one.add_(torch.where(factor > 0, step * factor, 0.0))
                if not self.keeps_first:
                    for one, earlier in zip(trained, before, strict=True):
                        one.grad = earlier
                run()
            finally:
                with torch.no_grad():
                    for one, value in kept.items():
                        one.copy_(value)
        return loss


class SAM(Perturbing):
    """Sharpness-aware minimization: the gradient is taken at ``weights + rho * gradient / its norm``.

    Each update takes two passes. The step is taken for each micro-batch by itself (m-sharpness), so accumulation is not
    one large batch, which is said once. The loss that is logged is that of the first pass.

    >>> SAM(rho=0.1).rho
    0.1
    """

    def __init__(self, rho: float = 0.05) -> None:
        check_number("rho", rho, 0.0, above=True)
        super().__init__(rho)
        self.rho = float(rho)

    def moved(self, model: nn.Module) -> list[Tensor]:
        return [one for one in model.parameters() if one.requires_grad]


class FGM(Perturbing):
    """Adversarial training of embeddings: the gradient at ``embedding + epsilon * gradient / its norm`` is added.

    ``params`` are names of parameters, exact ones or ``re:pattern``; by default the weights of all embedding layers.
    Made for each micro-batch by itself, so accumulation is not one large batch, which is said once.

    >>> FGM(epsilon=0.5).epsilon
    0.5
    """

    keeps_first = True

    def __init__(self, epsilon: float = 1.0, params: str | list[str] | None = None) -> None:
        check_number("epsilon", epsilon, 0.0, above=True)
        super().__init__(epsilon)
        self.epsilon = float(epsilon)
        self.params = [params] if isinstance(params, str) else params

    def prepare_model(self, model: nn.Module) -> None:
        if not self.moved(model):
            what = "has no embedding layer" if self.params is None else f"has no parameter that fits {self.params}"
            names = ", ".join(name for name, _ in model.named_parameters())
            raise ValueError(f"FGM moves embeddings, and the model {what}: name some in params=, of {names[:500]}.")

    def moved(self, model: nn.Module) -> list[Tensor]:
        if self.params is None:
            layers = [one for one in model.modules() if isinstance(one, nn.Embedding)]
            return [one.weight for one in layers if one.weight.requires_grad]
        named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
        return [one for name, one in named if any(_fits(name, wanted) for wanted in self.params)]


def _fits(name: str, wanted: str) -> bool:
    return bool(re.match(wanted[3:], name)) if wanted.startswith("re:") else name == wanted
