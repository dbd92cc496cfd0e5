"""Keeping zeros zero."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainwright.core.modifier import Site
from trainwright.recipes.pruning.base import PruningModifier
from trainwright.recipes.pruning.per_weight import ignore_frequency


@dataclass(kw_only=True, eq=False)
class ConstantPruningModifier(PruningModifier):
    """Keeps the zeros that weights have at ``start_epoch``, until ``end_epoch``: fine-tuning of a sparse model.

    ``update_frequency`` has no effect and says so: nothing changes in between.

    >>> ConstantPruningModifier(params=["re:.*weight"]).final_epoch
    0.0
    """

    works_in_parts = True

    leave_enabled: bool = field(default=False, init=False)
    mask_type: str | list[int] = field(default="unstructured", init=False)

    def __post_init__(self) -> None:
        ignore_frequency(self)
        super().__post_init__()

    def begin(self, site: Site, epoch: float) -> None:
        self.set_masks(site, {name: weight.detach() != 0 for name, weight in self.weights(site).items()})

    @property
    def final_epoch(self) -> float:
        return 0.0
