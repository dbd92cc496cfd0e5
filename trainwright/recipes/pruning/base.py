"""What all pruning has in common: masks that stay on the weights, whatever the optimizer does."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from trainwright.config.warnings import warn
from trainwright.core.dtensors import whole
from trainwright.core.modifier import Site
from trainwright.recipes.dtensors import placed
from trainwright.recipes.pruning.optimizer_state import mask_kept_weights
from trainwright.recipes.pruning.patterns import pattern_of
from trainwright.recipes.pruning.per_weight import PerWeightModifier
from trainwright.recipes.selecting import ALL_PRUNABLE, is_conv1d


@dataclass(kw_only=True, eq=False)
class PruningModifier(PerWeightModifier):
    """Holds masks and puts them on weights and gradients; what decides about the masks is in subclasses.

    ``masks`` is empty before the start, and after the end where ``leave_enabled`` is False. ``log_types`` has no
    effect: what is logged goes to every tracker.
    """

    kinds = ("mask",)
    #: Whether it also prunes weights of which each process has a part.
    works_in_parts = False
    #: Whether all weights are ranked in one list; an argument of those that can do both.
    global_sparsity: bool | None = field(default=False, init=False)

    leave_enabled: bool = True
    mask_type: str | list[int] = "unstructured"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pattern = pattern_of(self.mask_type)
        #: Masks in the weights' number format, in their order: made once for each change, used at each step.
        self._factors: list[Tensor] = []
        #: Weights that have their inputs in dimension 0: masks are made from them transposed.
        self._inputs_first: set[str] = set()

    @property
    def masks(self) -> dict[str, Tensor]:
        """Name of a parameter -> True where the weight stays, on the weight's device."""
        return self.kept["mask"]

    def prepare_model(self, model: nn.Module) -> None:
        super().prepare_model(model)
        if not self._names:
            raise ValueError(f"{type(self).__name__}: params={self.params!r} selects nothing; try {ALL_PRUNABLE}.")
        self._inputs_first = _inputs_first(model)
        for name, weight in self.chosen_parameters(model).items():
            self.pattern.check(name, self._as_output_first(name, weight).shape)

    def _as_output_first(self, name: str, tensor: Tensor) -> Tensor:
        return tensor.transpose(0, 1) if name in self._inputs_first else tensor

    @torch.no_grad()
    def set_masks(self, site: Site, masks: dict[str, Tensor]) -> None:
        """Use ``masks`` from now on; weights that they take away are zero."""
        weights = self.weights(site)
        self.kept["mask"] = {name: placed(mask.contiguous(), weights[name]) for name, mask in masks.items()}
        if self.global_sparsity:
            _note_emptied(self.masks)
        for name, mask in self.masks.items():
            weights[name].masked_fill_(~mask, 0)
            mask_kept_weights(site.optimizer, weights[name], mask)
        self.kept_changed()

    def kept_changed(self) -> None:
        self._factors = [mask.to(self._weights[name].dtype) for name, mask in self.masks.items()]

    def _masked(self, site: Site) -> list[Tensor]:
        weights = self.weights(site)
        return [weights[name] for name in self.masks]

    def shape_gradients(self, site: Site) -> None:
        if self.masks:
            mask_gradients(self._masked(site), self._factors)

    @torch.no_grad()
    def after_update(self, site: Site) -> None:
        if self.masks:
            torch._foreach_mul_(self._masked(site), self._factors)

    def end(self, site: Site, epoch: float) -> None:
        if not self.leave_enabled:
            self.set_masks(site, {})

    @torch.no_grad()
    def finish_model(self, model: nn.Module) -> None:
        named = dict(model.named_parameters())
        for name, mask in self.masks.items():
            if name in named and named[name].shape == mask.shape:
                # Not a product: that leaves -0.0, which some formats count as a value.
                named[name].masked_fill_(~mask.to(named[name].device), 0)

    @property
    def final_epoch(self) -> float:
        return max(self.end_epoch, 0.0)


@dataclass(kw_only=True, eq=False)
class ScheduledPruningModifier(PruningModifier):
    """Pruning that means something else with another schedule: all three of its numbers must be given."""

    start_epoch: float = field()
    end_epoch: float = field()
    update_frequency: float = field()


def _note_emptied(masks: dict[str, Tensor]) -> None:
    """Say which weights a common ranking has taken away as a whole."""
    if not masks:
        return
    device = next(iter(masks.values())).device
    is_left = torch.stack([whole(mask.any()).to(device) for mask in masks.values()]).tolist()
    for name, some in zip(masks, is_left, strict=True):
        if not some and any(is_left):
            warn(
                f"{name} has no weight left: all of its are smaller than those of other layers, with which they are "
                "ranked. Leave it out of params, or prune layer by layer."
            )


@torch.no_grad()
def mask_gradients(weights: list[Tensor], factors: list[Tensor]) -> None:
    """Multiply gradients by ``factors``; those that are absent or sparse are left alone."""
    there = [(w.grad, f) for w, f in zip(weights, factors, strict=True) if w.grad is not None and not w.grad.is_sparse]
    if there:
        torch._foreach_mul_([gradient for gradient, _ in there], [factor for _, factor in there])


def dense_gradient(weight: Tensor) -> Tensor | None:
    """A weight's gradient; embeddings with ``sparse=True`` have one that most operations do not take.

    >>> weight = nn.Parameter(torch.ones(2))
    >>> weight.grad = torch.tensor([0.0, 3.0]).to_sparse()
    >>> dense_gradient(weight)
    tensor([0., 3.])
    """
    gradient = weight.grad
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient


def _inputs_first(model: nn.Module) -> set[str]:
    """Weights stored as (inputs, outputs): GPT-2's Conv1D and transposed convolutions."""
    kinds = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    return {
        f"{name}.weight" if name else "weight"
        for name, layer in model.named_modules()
        if isinstance(layer, kinds) or is_conv1d(layer)
    }
