"""Magnitude pruning: the weights nearest to zero go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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


class GMPruningModifier(MagnitudePruningModifier):
    """Gradual magnitude pruning; ``global_sparsity`` ranks all weights together.

    >>> pruning = GMPruningModifier(init_sparsity=0.05, final_sparsity=0.8, start_epoch=0, end_epoch=10)
    >>> pruning.final_epoch
    10.0
    """

    ranks_together = None

    def __init__(
        self,
        *,
        init_sparsity: float | str,
        final_sparsity: float | dict[Any, list[str]],
        start_epoch: float = -1.0,
        end_epoch: float = -1.0,
        update_frequency: float = -1.0,
        params: str | Iterable[str] | None = None,
        leave_enabled: bool = True,
        inter_func: str = "cubic",
        mask_type: str | list[int] = "unstructured",
        global_sparsity: bool = False,
        phased: bool = False,
        score_type: str = "magnitude",
        log_types: Any = "__ALL__",
    ) -> None:
        if phased:
            raise ValueError("phased=True: use ACDCPruningModifier, which alternates sparse and dense phases.")
        if score_type != "magnitude":
            other = _OTHER_SCORES.get(score_type.lower(), "the pruning modifier of that name")
            raise ValueError(f"score_type={score_type!r}: use {other}; this one goes by magnitude.")
        if global_sparsity:
            warn("global_sparsity=True acts, but GlobalMagnitudePruningModifier says what it does: use that.")
        super().__init__(
            init_sparsity=init_sparsity,
            final_sparsity=final_sparsity,
            start_epoch=start_epoch,
            end_epoch=end_epoch,
            update_frequency=update_frequency,
            params=params,
            leave_enabled=leave_enabled,
            inter_func=inter_func,
            mask_type=mask_type,
            global_sparsity=global_sparsity,
            log_types=log_types,
        )
