"""RigL: sparse from the start; weak connections are dropped, and others grow where the gradient is large."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.config.warnings import warn
from trainwright.core.modifier import Site
from trainwright.recipes.pruning.base import ScheduledPruningModifier, dense_gradient
from trainwright.recipes.pruning.gradual import magnitudes
from trainwright.recipes.pruning.masks import lowest, masks_of
from trainwright.recipes.pruning.optimizer_state import reset_momenta
from trainwright.recipes.pruning.sparsity import checked_share, progress_between

STRATEGIES = ("uniform", "erdos_renyi", "erdos_renyi_kernel")


@dataclass(kw_only=True, eq=False)
class RigLPruningModifier(ScheduledPruningModifier):
    """Trains a network of constant sparsity, and moves a share of its connections at each update.

    The share falls from ``init_update_fraction`` to 0 along a cosine. Growth goes by the gradient of the training step
    before the update; with ``num_grads`` above 1 by the sum over that many training batches. New connections start at
    zero, and with ``momentum_buffer_reset`` the optimizer has no memory of them.

    >>> RigLPruningModifier(final_sparsity=0.7, start_epoch=2, end_epoch=26, update_frequency=4).sparsity_strategy
    'erdos_renyi_kernel'
    """

    changes_graph = True

    final_sparsity: float
    num_grads: int = 1
    global_sparsity: bool | None = False
    momentum_buffer_reset: bool = True
    sparsity_strategy: str = "erdos_renyi_kernel"
    init_update_fraction: float = 0.3
    grad_sampler_kwargs: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.global_sparsity:
            raise ValueError(
                "global_sparsity=True is not for RigL: sparsity_strategy spreads the sparsity over layers."
            )
        if self.mask_type != "unstructured":
            raise ValueError(f"mask_type={self.mask_type!r}: RigL moves single weights, so use 'unstructured'.")
        if self.sparsity_strategy not in STRATEGIES:
            raise ValueError(f"sparsity_strategy={self.sparsity_strategy!r} is not known: use {', '.join(STRATEGIES)}.")
        if self.end_epoch == -1:
            raise ValueError("end_epoch=-1: connections move less and less until end_epoch, so name it.")
        if self.num_grads < 1:
            raise ValueError(f"num_grads={self.num_grads} must be 1 or more.")
        super().__post_init__()
        if self.grad_sampler_kwargs:
            warn("grad_sampler_kwargs has no effect: gradients are those of the training's own batches.")
        self.final_sparsity = checked_share(self.final_sparsity, "final_sparsity")
        self.init_update_fraction = checked_share(self.init_update_fraction, "init_update_fraction")
        self.num_grads = int(self.num_grads)
        self._epoch_reached = 0.0
        #: Of the step that is being made, where an update follows it; never saved.
        self._gradients: dict[str, Tensor] = {}

    def begin(self, site: Site, epoch: float) -> None:
        weights = self.weights(site)
        shares = spread_sparsity(weights, self.final_sparsity, self.sparsity_strategy)
        self.set_masks(site, masks_of(magnitudes(weights), shares, self.pattern))

    def advance(self, site: Site, epoch: float) -> None:
        super().advance(site, epoch)
        self._epoch_reached, self._gradients = epoch, {}

    def shape_gradients(self, site: Site) -> None:
        if self.is_active and self.num_grads == 1 and self._is_due_after_this_step(site):
            found = {name: dense_gradient(weight) for name, weight in self.weights(site).items()}
            self._gradients = {name: g.detach().abs() for name, g in found.items() if g is not None}
        super().shape_gradients(site)

    def _is_due_after_this_step(self, site: Site) -> bool:
        # A step's margin: an epoch's last steps need not be of equal length.
        later = self._epoch_reached + 2 / site.steps_per_epoch
        is_last = self.end_epoch != -1 and later >= self.end_epoch
        return is_last or self.update_frequency == -1 or self._interval_at(later) > self._interval

    def update(self, site: Site, epoch: float) -> None:
        progress = progress_between(epoch, self.start_epoch, self.end_epoch)
        share = self.init_update_fraction * 0.5 * (1 + math.cos(math.pi * progress))
        if self.num_grads > 1 and share > 0:
            self._gradients = self._summed_gradients(site)
        if self._gradients and share > 0:
            self._move_connections(site, share)

    def _summed_gradients(self, site: Site) -> dict[str, Tensor]:
        if site.gradients is None:
            raise ValueError("num_grads above 1 needs gradients of training batches: pass gradients= to ManualLoop.")
        sums: dict[str, Tensor] = {}
        for _ in site.gradients(self.num_grads):
            for name, weight in self.weights(site).items():
                gradient = dense_gradient(weight)
                if gradient is not None:
                    sums[name] = gradient.float() + sums[name] if name in sums else gradient.float().clone()
        return {name: total.abs() for name, total in sums.items()}

    @torch.no_grad()
    def _move_connections(self, site: Site, share: float) -> None:
        weights, masks = self.weights(site), dict(self.masks)
        grown: dict[str, Tensor] = {}
        for name, gradient in self._gradients.items():
            old = masks[name]
            active = int(old.sum())
            moved = round(share * active)
            if not moved:
                continue
            strength = weights[name].abs().float().masked_fill(~old, float("inf")).flatten()
            kept = old & ~lowest(strength, moved, name).view(old.shape)
            # What was just dropped may come back: its gradient competes with the others.
            promise = -gradient.float().nan_to_num(0.0).masked_fill(kept, float("-inf")).flatten()
            masks[name] = kept | lowest(promise, moved, name).view(old.shape)
            grown[name] = masks[name] & ~old
        self.set_masks(site, masks)
        if self.momentum_buffer_reset:
            for name, where in grown.items():
                reset_momenta(site.optimizer, weights[name], where)


def spread_sparsity(weights: dict[str, nn.Parameter], sparsity: float, strategy: str) -> dict[str, float]:
    """The sparsity of each weight, so that all together have ``sparsity``.

    Erdős-Rényi gives small and thin weights more connections than large ones; a weight that would get more than it has
    stays dense, and the others share the rest.

    >>> weights = {"a": nn.Parameter(torch.zeros(100, 100)), "b": nn.Parameter(torch.zeros(10, 10))}
    >>> {name: round(share, 3) for name, share in spread_sparsity(weights, 0.9, "erdos_renyi").items()}
    {'a': 0.908, 'b': 0.082}
    >>> {name: round(share, 3) for name, share in spread_sparsity(weights, 0.8, "erdos_renyi").items()}
    {'a': 0.808, 'b': 0.0}
    """
    if strategy == "uniform":
        return dict.fromkeys(weights, sparsity)
    sizes = {name: weight.numel() for name, weight in weights.items()}
    shapes = {n: w.shape if strategy == "erdos_renyi_kernel" else w.shape[:2] for n, w in weights.items()}
    scales = {name: sum(shape) / math.prod(shape) for name, shape in shapes.items()}
    budget = (1 - sparsity) * sum(sizes.values())
    dense: set[str] = set()
    while True:
        rest = [name for name in weights if name not in dense]
        room = budget - sum(sizes[name] for name in dense)
        factor = room / max(sum(scales[name] * sizes[name] for name in rest), 1e-12)
        full = {name for name in rest if factor * scales[name] >= 1}
        if not full:
            return {name: 0.0 if name in dense else 1 - max(factor * scales[name], 0.0) for name in weights}
        dense |= full
