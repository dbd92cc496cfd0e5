"""Top-KAST: the forward pass uses the largest weights, training reaches more of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from trainwright.core.modifier import Site
from trainwright.recipes.pruning.base import ScheduledPruningModifier, mask_gradients
from trainwright.recipes.pruning.masks import masks_of
from trainwright.recipes.pruning.sparsity import checked_share


@dataclass(kw_only=True, eq=False)
class TopKASTPruningModifier(ScheduledPruningModifier):
    """Two masks: the model holds the largest weights (forward set), gradients reach a larger set (backward set).

    The other weights are kept aside, and put in place while the optimizer steps; at the next update of the masks they
    may come back. Weights in the forward set decay by ``active_weight_decay`` times the learning rate, those that are
    only in the backward set by ``1 / (1 - forward_sparsity)`` times as much. From ``end_epoch`` on the forward mask is
    final.

    >>> kast = TopKASTPruningModifier(
    ...     forward_sparsity=0.9, backward_sparsity=0.5, start_epoch=0, end_epoch=100, update_frequency=-1
    ... )
    >>> kast.active_weight_decay
    0.0001
    """

    #: ``aside``: the values of weights that the forward mask takes away, zero elsewhere.
    kinds = ("mask", "backward", "aside")

    forward_sparsity: float
    backward_sparsity: float
    global_sparsity: bool | None = True
    active_weight_decay: float = 0.0001

    def __post_init__(self) -> None:
        super().__post_init__()
        forward, backward = self.forward_sparsity, self.backward_sparsity
        self.forward_sparsity = checked_share(forward, "forward_sparsity")
        self.backward_sparsity = checked_share(backward, "backward_sparsity")
        if self.backward_sparsity > self.forward_sparsity or self.forward_sparsity == 1:
            raise ValueError(
                f"backward_sparsity={backward} must not be above forward_sparsity={forward}, and "
                "that one not be 1: training reaches at least the weights that are used."
            )
        self.active_weight_decay = float(self.active_weight_decay)

    @property
    def backward_masks(self) -> dict[str, Tensor]:
        """Name -> True where gradients arrive: a superset of ``masks``. Empty once the forward mask is final."""
        return self.kept["backward"]

    @torch.no_grad()
    def update(self, site: Site, epoch: float) -> None:
        weights, aside = self.weights(site), self.kept["aside"]
        whole = {n: w + aside[n] if n in aside else w.detach().clone() for n, w in weights.items()}
        scores = {name: self._as_output_first(name, value.abs()) for name, value in whole.items()}
        forward, backward = (
            masks_of(scores, dict.fromkeys(scores, share), self.pattern, together=bool(self.global_sparsity))
            for share in (self.forward_sparsity, self.backward_sparsity)
        )
        self.kept["backward"] = {n: self._as_output_first(n, mask).contiguous() for n, mask in backward.items()}
        forward = {name: self._as_output_first(name, mask) for name, mask in forward.items()}
        for name, weight in weights.items():
            weight.copy_(whole[name])
        self.kept["aside"] = {name: value.masked_fill(forward[name], 0) for name, value in whole.items()}
        self.set_masks(site, forward)

    def end(self, site: Site, epoch: float) -> None:
        self.kept["backward"], self.kept["aside"] = {}, {}
        super().end(site, epoch)

    def shape_gradients(self, site: Site) -> None:
        if not self.backward_masks:
            super().shape_gradients(site)
            return
        weights = self.weights(site)
        mask_gradients([weights[name] for name in self.backward_masks], list(self.backward_masks.values()))

    @torch.no_grad()
    def before_update(self, site: Site) -> None:
        if self.backward_masks:
            weights, aside = self.weights(site), self.kept["aside"]
            whole: list[Tensor] = [weights[name] for name in aside]
            torch._foreach_add_(whole, list(aside.values()))

    @torch.no_grad()
    def after_update(self, site: Site) -> None:
        if not self.backward_masks:
            super().after_update(site)
            return
        # A step that was left out decays nothing.
        share = 0.0 if site.was_bad() else self.active_weight_decay
        rates = _learning_rates(site.optimizer)
        for name, weight in self.weights(site).items():
            forward, backward, aside = self.masks[name], self.backward_masks[name], self.kept["aside"][name]
            if share:
                decay = share * rates.get(weight, 0.0)
                factors = torch.where(forward, 1 - decay, 1 - decay / (1 - self.forward_sparsity))
                weight.mul_(factors.to(weight.dtype))
            # Neither momentum nor weight decay moves what lies outside the backward set.
            aside.copy_(torch.where(backward, weight, aside).masked_fill_(forward, 0))
            weight.masked_fill_(~forward, 0)


def _learning_rates(optimizer: Optimizer) -> dict[Any, float]:
    groups = optimizer.param_groups if optimizer is not None else []
    return {parameter: group["lr"] for group in groups for parameter in group["params"]}
