"""OBS (oBERT): second-order pruning with small dense blocks of the Fisher matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.config.warnings import warn
from trainwright.core.modifier import Site
from trainwright.recipes.pruning.fisher import DenseFisher
from trainwright.recipes.pruning.surgeon import SurgeonModifier, removed_part, saliency

_WIDTH = 4


@dataclass(kw_only=True, eq=False)
class OBSPruningModifier(SurgeonModifier):
    """Scores are ``w² / (2 [F⁻¹]ww)``, and the weights that stay move by ``-F⁻¹ w / [F⁻¹]ww``.

    ``F`` is estimated from ``num_grads`` gradients in blocks of ``fisher_block_size`` weights; memory grows with that
    size. With ``mask_type: block4`` four neighbours along the inputs are scored and taken away together.
    ``num_recomputations`` makes each update in as many rounds. Gradients are those of the training's own batches, so
    ``grad_sampler_kwargs`` has no effect.

    >>> OBSPruningModifier(init_sparsity=0.3, final_sparsity=0.9, end_epoch=10, fisher_block_size=50).global_sparsity
    True
    """

    global_sparsity: bool | None = True
    num_grads: int = 1024
    damp: float = 1e-7
    fisher_block_size: int = 1
    grad_sampler_kwargs: dict[str, Any] | None = None
    num_recomputations: int = 1

    def __post_init__(self) -> None:
        if self.mask_type not in ("unstructured", "block4"):
            raise ValueError(f"mask_type={self.mask_type!r}: OBSPruningModifier knows 'unstructured' and 'block4'.")
        super().__post_init__()
        self.num_grads, self.damp = int(self.num_grads), float(self.damp)
        self.fisher_block_size, self.num_recomputations = int(self.fisher_block_size), int(self.num_recomputations)
        for name in ("num_grads", "damp", "fisher_block_size", "num_recomputations"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)} must be more than 0.")
        if self.mask_type == "block4" and self.fisher_block_size % _WIDTH:
            raise ValueError(
                f"fisher_block_size={self.fisher_block_size} must be a multiple of 4 for mask_type block4."
            )
        if self.grad_sampler_kwargs:
            warn("grad_sampler_kwargs has no effect: gradients are those of the training's own batches.")

    @property
    def _is_block4(self) -> bool:
        return self.mask_type == "block4"

    def prepare_model(self, model: nn.Module) -> None:
        super().prepare_model(model)
        for name, weight in self.chosen_parameters(model).items():
            inputs = self._as_output_first(name, weight).shape[1 if weight.dim() > 1 else 0]
            if self._is_block4 and inputs % _WIDTH:
                raise ValueError(f"{name}: block4 with OBS needs inputs in multiples of 4, not {inputs}; leave it out.")

    def remove(self, site: Site, wanted: dict[str, float]) -> None:
        weights = self.weights(site)
        fishers = self._estimate(site)
        parts: dict[str, Tensor] = {}
        scores: dict[str, Tensor] = {}
        for name, weight in weights.items():
            flat = self.flat(name, weight.detach())
            score, parts[name] = self._score(fishers[name], flat)
            scores[name] = self.unflattened(name, score, weight)
        masks = self.masks_for(site, scores, wanted)
        corrections = {
            name: fishers[name].times(torch.where(self.flat(name, self.masks[name] & ~masks[name]), part, 0))
            for name, part in parts.items()
        }
        self.correct(site, masks, corrections)

    def _estimate(self, site: Site) -> dict[str, DenseFisher]:
        size, count, damp = self.fisher_block_size, self.num_grads, self.damp
        fishers = {
            name: DenseFisher(weight.numel(), size, samples=count, damp=damp, like=weight)
            for name, weight in self.weights(site).items()
        }
        for gradients in self.sampled(site, count):
            for name, gradient in gradients.items():
                # Not under no_grad as a whole: the sampler's backward passes run between two of these.
                fishers[name].add(gradient)
        for fisher in fishers.values():
            fisher.invert()
        return fishers

    def _score(self, fisher: DenseFisher, flat: Tensor) -> tuple[Tensor, Tensor]:
        """The score of each weight, and what the inverse is multiplied with if it goes."""
        diagonal = fisher.diagonal()
        if not self._is_block4:
            return saliency(flat, diagonal), removed_part(flat, diagonal, torch.ones_like(flat, dtype=torch.bool))
        rows = flat.to(diagonal.dtype).view(-1, _WIDTH)
        solved = torch.linalg.solve(fisher.corners(_WIDTH), rows)
        scores = 0.5 * (rows * solved).sum(1, keepdim=True).expand(-1, _WIDTH)
        return scores.reshape(-1), solved.reshape(-1)
