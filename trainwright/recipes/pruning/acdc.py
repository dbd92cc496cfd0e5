"""AC/DC: sparse and dense phases take turns."""

from __future__ import annotations

from dataclasses import dataclass

from trainwright.core.modifier import Site
from trainwright.recipes.pruning.base import ScheduledPruningModifier
from trainwright.recipes.pruning.gradual import magnitudes
from trainwright.recipes.pruning.masks import masks_of
from trainwright.recipes.pruning.optimizer_state import reset_momenta
from trainwright.recipes.pruning.sparsity import checked_share

_SAME_MOMENT = 1e-6


@dataclass(kw_only=True, eq=False)
class ACDCPruningModifier(ScheduledPruningModifier):
    """Dense for ``update_frequency`` epochs, then sparse for as long, and so on; the last phase is sparse.

    When a dense phase follows a sparse one, ``momentum_buffer_reset`` makes the optimizer forget what it remembers of
    the gradients (all its moments, not only SGD's momentum): it is stale for weights that were masked.

    >>> ACDCPruningModifier(compression_sparsity=0.9, start_epoch=0, end_epoch=100, update_frequency=5).global_sparsity
    True
    """

    compression_sparsity: float
    global_sparsity: bool | None = True
    momentum_buffer_reset: bool = True

    def __post_init__(self) -> None:
        for name in ("start_epoch", "end_epoch", "update_frequency"):
            value = getattr(self, name)
            if float(value) != int(value):
                raise ValueError(f"{name}={value}: phases are whole epochs, so use a whole number.")
        if self.end_epoch < 0 or self.update_frequency < 1:
            raise ValueError("ACDCPruningModifier needs an end_epoch, and an update_frequency of one epoch or more.")
        super().__post_init__()
        self.compression_sparsity = checked_share(self.compression_sparsity, "compression_sparsity")

    def is_dense_at(self, epoch: float) -> bool:
        """Whether ``epoch`` lies in a dense phase."""
        phase = int((epoch - max(self.start_epoch, 0.0) + _SAME_MOMENT) // self.update_frequency)
        return phase % 2 == 0 and epoch < self.end_epoch - self.update_frequency - _SAME_MOMENT

    def update(self, site: Site, epoch: float) -> None:
        if not self.is_dense_at(epoch):
            if not self.masks:
                scores = {n: self._as_output_first(n, s) for n, s in magnitudes(self.weights(site)).items()}
                shares = dict.fromkeys(scores, self.compression_sparsity)
                masks = masks_of(scores, shares, self.pattern, together=bool(self.global_sparsity))
                self.set_masks(site, {n: self._as_output_first(n, mask) for n, mask in masks.items()})
        elif self.masks:
            self.set_masks(site, {})
            if self.momentum_buffer_reset:
                for weight in self.weights(site).values():
                    reset_momenta(site.optimizer, weight)
