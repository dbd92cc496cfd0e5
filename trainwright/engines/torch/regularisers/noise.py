"""Noise on the gradients of an update, less of it with every step."""

from __future__ import annotations

import torch

from trainwright.core.modifier import Site
from trainwright.engines.torch.loss_functions.base import check_number
from trainwright.engines.torch.regularisers.base import Regulariser


class GradientNoise(Regulariser):
    """Adds normal noise of variance ``eta / (1 + step) ** gamma`` to the gradients of each update, before clipping.

    The numbers follow from the seed and the step: the same on every process, after a resume, and however a batch is
    cut.

    >>> round(GradientNoise(eta=0.04).spread(step=0), 9)
    0.2
    """

    joins_members = False

    def __init__(self, eta: float = 0.01, gamma: float = 0.55) -> None:
        super().__init__()
        check_number("eta", eta, 0.0, above=True)
        check_number("gamma", gamma, 0.0)
        self.eta, self.gamma = float(eta), float(gamma)

    def spread(self, step: int) -> float:
        """The standard deviation at a step, counted from 0."""
        return (self.eta / (1 + step) ** self.gamma) ** 0.5

    def shape_gradients(self, site: Site) -> None:
        # On the CPU, where a seed gives the same numbers for every device; far apart for steps that follow each other.
        generator = torch.Generator().manual_seed((self._seed * 0x9E3779B97F4A7C15 + self._step) % 2**63)
        for parameter in site.model.parameters():
            if parameter.grad is not None:
                drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
                parameter.grad.add_(drawn.to(parameter.grad), alpha=self.spread(self._step))
