"""Second-order pruning: the weights whose removal costs the loss least go, and the others make up for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from trainwright.core.modifier import Site
from trainwright.recipes.pruning.base import dense_gradient
from trainwright.recipes.pruning.gradual import GradualPruningModifier
from trainwright.recipes.pruning.sparsity import interpolate

#: Keeps a division finite where a diagonal entry has vanished.
_TINY = torch.finfo(torch.float32).eps


class SurgeonModifier(GradualPruningModifier):
    """Optimal Brain Surgeon with the inverse of an empirical Fisher matrix, estimated anew for each update.

    Weights are read flat, inputs last, so that neighbours along the inputs share a block of the matrix.
    """

    needs_whole_tensors = True
    ranks_together = None
    #: In how many rounds, each with a new estimate, one update is made.
    num_recomputations = 1

    def begin(self, site: Site, epoch: float) -> None:
        self.sampler(site)
        super().begin(site, epoch)

    def sampler(self, site: Site) -> Any:
        """What gives gradients of training batches."""
        if site.gradients is None:
            raise ValueError(
                f"{type(self).__name__} needs gradients of training batches: the Trainer has them; for a loop of your "
                "own pass gradients= to ManualLoop, a function (count) -> iterator that leaves each batch's in .grad."
            )
        return site.gradients

    def update(self, site: Site, epoch: float) -> None:
        targets = self.targets(site, epoch)
        first = {name: 1 - float(mask.double().mean()) for name, mask in self.masks.items()}
        if self.global_sparsity:
            zeros = sum(float((~mask).sum()) for mask in self.masks.values())
            first = dict.fromkeys(first, zeros / max(sum(mask.numel() for mask in self.masks.values()), 1))
        for number in range(1, self.num_recomputations + 1):
            share = number / self.num_recomputations
            wanted = {n: max(interpolate(share, first[n], targets[n], "linear"), first[n]) for n in targets}
            if self._takes_more(first, wanted):
                self.remove(site, wanted)
            else:
                self.set_masks(site, self.masks)

    def _takes_more(self, before: dict[str, float], wanted: dict[str, float]) -> bool:
        """Whether a weight more has to go, of any tensor or, with one threshold for all, of all together."""
        sizes = {name: mask.numel() for name, mask in self.masks.items()}
        zeros = {n: round(wanted[n] * size) - round(before[n] * size) for n, size in sizes.items()}
        if self.global_sparsity and len(set(wanted.values())) == 1:
            total, name = sum(sizes.values()), next(iter(wanted))
            return round(wanted[name] * total) > round(before[name] * total)
        return any(more > 0 for more in zeros.values())

    def remove(self, site: Site, wanted: dict[str, float]) -> None:
        """Sample gradients, choose, and change the weights that stay."""
        raise NotImplementedError

    @torch.no_grad()
    def correct(self, site: Site, masks: dict[str, Tensor], corrections: dict[str, Tensor]) -> None:
        """Subtract ``corrections`` (flat), then put ``masks`` on."""
        for name, weight in self.weights(site).items():
            change = self.unflattened(name, corrections[name], weight)
            weight.sub_(change.to(weight.device, weight.dtype))
        self.set_masks(site, masks)

    def flat(self, name: str, tensor: Tensor) -> Tensor:
        """In the order in which the Fisher matrix is cut into blocks."""
        tensor = self._as_output_first(name, tensor)
        return tensor.movedim(1, -1).reshape(-1) if tensor.dim() > 2 else tensor.reshape(-1)

    def unflattened(self, name: str, values: Tensor, like: Tensor) -> Tensor:
        """Back from :meth:`flat`."""
        like = self._as_output_first(name, like)
        shape = like.movedim(1, -1).shape if like.dim() > 2 else like.shape
        whole = values.view(shape)
        return self._as_output_first(name, whole.movedim(-1, 1) if like.dim() > 2 else whole)

    def sampled(self, site: Site, count: int) -> Iterator[dict[str, Tensor]]:
        """Flat gradients of ``count`` batches, zero where weights are masked or a gradient is not finite."""
        for _ in self.sampler(site)(count):
            gradients: dict[str, Tensor] = {}
            for name, weight in self.weights(site).items():
                found = dense_gradient(weight)
                gradient = torch.zeros_like(weight) if found is None else found.detach()
                gradient = gradient.float() if gradient.dtype != torch.float64 else gradient
                gradient = torch.where(gradient.isfinite().all(), gradient, 0) * self.masks[name]
                gradients[name] = self.flat(name, gradient)
            yield gradients


def saliency(weight: Tensor, diagonal: Tensor) -> Tensor:
    """How much the loss grows when a weight is taken away.

    >>> saliency(torch.tensor([2.0]), torch.tensor([0.5]))
    tensor([4.0000])
    """
    return weight.to(diagonal.dtype).square() / (2 * diagonal + _TINY)


def removed_part(weight: Tensor, diagonal: Tensor, gone: Tensor) -> Tensor:
    """What the inverse is multiplied with to make up for the weights that are ``gone``."""
    return torch.where(gone, weight.to(diagonal.dtype) / (diagonal + _TINY), 0)
