"""M-FAC: second-order pruning with a Fisher matrix that is never written down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainwright.config.warnings import warn
from trainwright.core.modifier import Site
from trainwright.recipes.pruning.fisher import GradientFisher
from trainwright.recipes.pruning.sparsity import checked_share
from trainwright.recipes.pruning.surgeon import SurgeonModifier, removed_part, saliency


@dataclass(kw_only=True, eq=False)
class MFACPruningModifier(SurgeonModifier):
    """As OBSPruningModifier, but the gradients are kept (on ``grads_device``) instead of blocks of the matrix.

    Memory grows with ``num_grads``, so blocks can be large; ``fisher_block_size: null`` makes all weights one block.
    ``num_grads`` may be ``{sparsity: number}``: more samples once a sparsity is reached. The work is always cut into
    pieces and done on the weights' own device with gradients of the training's batches; ``num_pages``,
    ``available_devices`` (``available_gpus`` of old), ``use_gradient_buffering`` and ``grad_sampler_kwargs`` have no
    effect and say so.

    >>> MFACPruningModifier(init_sparsity=0.05, final_sparsity=0.8, end_epoch=10, num_grads={0: 64, 0.5: 128}).damp
    1e-05
    """

    global_sparsity: bool | None = False
    use_gradient_buffering: bool | None = None
    num_grads: int | dict[Any, int] = 64
    damp: float = 1e-5
    grads_device: str | int = "cpu"
    fisher_block_size: int | None = 2000
    num_pages: int = 1
    available_devices: list[str] | None = None
    available_gpus: list[str] | None = None
    grad_sampler_kwargs: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.num_grads = self._counts = _checked_counts(self.num_grads)
        self.damp = float(self.damp)
        if self.damp <= 0 or (self.fisher_block_size is not None and self.fisher_block_size < 1):
            raise ValueError("damp and fisher_block_size must be more than 0 (fisher_block_size may be null).")
        unused = {
            "num_pages": self.num_pages != 1,
            "available_devices": bool(self.available_devices),
            "available_gpus": bool(self.available_gpus),
            "use_gradient_buffering": bool(self.use_gradient_buffering),
            "grad_sampler_kwargs": bool(self.grad_sampler_kwargs),
        }
        if given := [name for name, is_given in unused.items() if is_given]:
            warn(
                f"{', '.join(given)}: no effect; sampled gradients are worked on in pieces on the weights' own device."
            )

    def _count_for(self, wanted: dict[str, float]) -> int:
        reached = sum(wanted.values()) / max(len(wanted), 1)
        return self._counts[max(share for share in self._counts if share <= reached or share == 0.0)]

    def remove(self, site: Site, wanted: dict[str, float]) -> None:
        weights = self.weights(site)
        fishers = self._estimate(site, self._count_for(wanted))
        flat = {name: self.flat(name, weight.detach()) for name, weight in weights.items()}
        diagonals = {name: fisher.diagonal() for name, fisher in fishers.items()}
        scores = {n: self.unflattened(n, saliency(flat[n], diagonals[n]), w) for n, w in weights.items()}
        masks = self.masks_for(site, scores, wanted)
        gone = {name: self.flat(name, self.masks[name] & ~mask) for name, mask in masks.items()}
        parts = {name: removed_part(flat[name], diagonals[name], gone[name]) for name in weights}
        projections = self._shared({name: fishers[name].projections(part) for name, part in parts.items()})
        self.correct(site, masks, {n: fishers[n].times(part, projections[n]) for n, part in parts.items()})

    def _estimate(self, site: Site, count: int) -> dict[str, GradientFisher]:
        kept: dict[str, list[Tensor]] = {name: [] for name in self.weights(site)}
        for gradients in self.sampled(site, count):
            for name, gradient in gradients.items():
                kept[name].append(gradient.to(self.grads_device, copy=True))
        fishers = {
            name: GradientFisher(torch.stack(kept.pop(name)), self.fisher_block_size, self.damp, weight.device)
            for name, weight in self.weights(site).items()
        }
        inner = self._shared({name: fisher.inner_products() for name, fisher in fishers.items()})
        for name, fisher in fishers.items():
            fisher.use(inner[name])
        return fishers

    def _shared(self, parts: dict[str, list[Tensor]]) -> dict[str, list[Tensor]]:
        """Where all weights are one block, their contributions add up."""
        if self.fisher_block_size is not None:
            return parts
        total = sum(part[0].cpu() for part in parts.values())
        assert isinstance(total, Tensor)
        return {name: [total.to(part[0].device)] for name, part in parts.items()}


def _checked_counts(counts: int | dict[Any, int]) -> dict[float, int]:
    table = (
        {checked_share(share, "num_grads"): int(count) for share, count in counts.items()}
        if isinstance(counts, dict)
        else {0.0: int(counts)}
    )
    if 0.0 not in table or min(table.values()) < 1:
        raise ValueError(f"num_grads={counts!r} must be 1 or more, and say how many from sparsity 0.0 on.")
    return table
