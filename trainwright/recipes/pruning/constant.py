"""Keeping zeros zero."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainwright.core.modifier import Site
from trainwright.recipes.pruning.base import PruningModifier
from trainwright.recipes.pruning.per_weight import note_unused_frequency
from trainwright.recipes.selecting import ALL_PRUNABLE


class ConstantPruningModifier(PruningModifier):
    """Keeps the zeros that weights have at ``start_epoch``, until ``end_epoch``: fine-tuning of a sparse model.

    ``update_frequency`` has no effect and says so: nothing changes in between.

    >>> ConstantPruningModifier(params=["re:.*weight"]).final_epoch
    0.0
    """

    works_in_parts = True

    def __init__(
        self,
        *,
        params: str | Iterable[str] = ALL_PRUNABLE,
        start_epoch: float = -1.0,
        end_epoch: float = -1.0,
        update_frequency: float = -1.0,
        log_types: Any = "__ALL__",
    ) -> None:
        note_unused_frequency(self, update_frequency)
        super().__init__(
            params=params, start_epoch=start_epoch, end_epoch=end_epoch, leave_enabled=False, log_types=log_types
        )

    def begin(self, site: Site, epoch: float) -> None:
        self.set_masks(site, {name: weight.detach() != 0 for name, weight in self.weights(site).items()})

    @property
    def final_epoch(self) -> float:
        return 0.0
