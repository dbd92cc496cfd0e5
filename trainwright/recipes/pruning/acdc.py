"""AC/DC: sparse and dense phases take turns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainwright.core.modifier import Site
from trainwright.recipes.pruning.base import PruningModifier
from trainwright.recipes.pruning.gradual import magnitudes
from trainwright.recipes.pruning.masks import masks_of
from trainwright.recipes.pruning.optimizer_state import reset_momenta
from trainwright.recipes.pruning.sparsity import checked_share
from trainwright.recipes.selecting import ALL_PRUNABLE

_SAME_MOMENT = 1e-6


class ACDCPruningModifier(PruningModifier):
    """Dense for ``update_frequency`` epochs, then sparse for as long, and so on; the last phase is sparse.

    When a dense phase follows a sparse one, ``momentum_buffer_reset`` makes the optimizer forget what it remembers of
    the gradients (all its moments, not only SGD's momentum): it is stale for weights that were masked.

    >>> ACDCPruningModifier(compression_sparsity=0.9, start_epoch=0, end_epoch=100, update_frequency=5).global_sparsity
    True
    """

    def __init__(
        self,
        *,
        compression_sparsity: float,
        start_epoch: float,
        end_epoch: float,
        update_frequency: float,
        params: str | Iterable[str] = ALL_PRUNABLE,
        global_sparsity: bool = True,
        leave_enabled: bool = True,
        momentum_buffer_reset: bool = True,
        mask_type: str | list[int] = "unstructured",
        log_types: Any = "__ALL__",
    ) -> None:
        whole = {"start_epoch": start_epoch, "end_epoch": end_epoch, "update_frequency": update_frequency}
        for name, value in whole.items():
            if float(value) != int(value):
                raise ValueError(f"{name}={value}: phases are whole epochs, so use a whole number.")
        if end_epoch < 0 or update_frequency < 1:
            raise ValueError("ACDCPruningModifier needs an end_epoch, and an update_frequency of one epoch or more.")
        super().__init__(
            params=params,
            start_epoch=start_epoch,
            end_epoch=end_epoch,
            update_frequency=update_frequency,
            leave_enabled=leave_enabled,
            mask_type=mask_type,
            log_types=log_types,
        )
        self.compression_sparsity = checked_share(compression_sparsity, "compression_sparsity")
        self.global_sparsity, self.momentum_buffer_reset = global_sparsity, momentum_buffer_reset

    def is_dense_at(self, epoch: float) -> bool:
        """Whether ``epoch`` lies in a dense phase."""
        phase = int((epoch - max(self.start_epoch, 0.0) + _SAME_MOMENT) // self.update_frequency)
        return phase % 2 == 0 and epoch < self.end_epoch - self.update_frequency - _SAME_MOMENT

    def update(self, site: Site, epoch: float) -> None:
        if not self.is_dense_at(epoch):
            if not self.masks:
                scores = {n: self._as_output_first(n, s) for n, s in magnitudes(self.weights(site)).items()}
                shares = dict.fromkeys(scores, self.compression_sparsity)
                masks = masks_of(scores, shares, self.pattern, together=self.global_sparsity)
                self.set_masks(site, {n: self._as_output_first(n, mask) for n, mask in masks.items()})
        elif self.masks:
            self.set_masks(site, {})
            if self.momentum_buffer_reset:
                for weight in self.weights(site).values():
                    reset_momenta(site.optimizer, weight)
