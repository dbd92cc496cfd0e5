"""Magnitude pruning: the weights nearest to zero go."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from trainwright.config.warnings import warn
from trainwright.core.modifier import Site
from trainwright.recipes.pruning.gradual import GradualPruningModifier, magnitudes

_OTHER_SCORES = {
    "movement": "MovementPruningModifier",
    "mfac": "MFACPruningModifier",
    "obs": "OBSPruningModifier",
}


class MagnitudePruningModifier(GradualPruningModifier):
    """Gradual magnitude pruning, layer by layer: each weight reaches ``final_sparsity``.

    >>> MagnitudePruningModifier(init_sparsity=0, final_sparsity={0.9: ["a.weight"]}, end_epoch=1).mask_type
    'unstructured'
    """

    works_in_parts = True

    def scores(self, site: Site) -> dict[str, Tensor]:
        return magnitudes(self.scored(site))


class GlobalMagnitudePruningModifier(MagnitudePruningModifier):
    """Gradual magnitude pruning with one threshold for all weights: together they reach ``final_sparsity``."""

    ranks_together = True


@dataclass(kw_only=True, eq=False)
class GMPruningModifier(MagnitudePruningModifier):
    """Gradual magnitude pruning; ``global_sparsity`` ranks all weights together.

    >>> pruning = GMPruningModifier(init_sparsity=0.05, final_sparsity=0.8, start_epoch=0, end_epoch=10)
    >>> pruning.final_epoch
    10.0
    """

    ranks_together = None

    global_sparsity: bool | None = False
    phased: bool = False
    score_type: str = "magnitude"

    def __post_init__(self) -> None:
        if self.phased:
            raise ValueError("phased=True: use ACDCPruningModifier, which alternates sparse and dense phases.")
        if self.score_type != "magnitude":
            other = _OTHER_SCORES.get(self.score_type.lower(), "the pruning modifier of that name")
            raise ValueError(f"score_type={self.score_type!r}: use {other}; this one goes by magnitude.")
        if self.global_sparsity:
            warn("global_sparsity=True acts, but GlobalMagnitudePruningModifier says what it does: use that.")
        super().__post_init__()
