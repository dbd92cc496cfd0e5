"""From scores to masks: which weights stay (True) and which are zero (False).

A :class:`Pattern` says which weights stand or fall together. The number of zeros is exact: of ``n`` weights
``round(sparsity * n)`` are masked (half to even), of blocks the number that comes nearest. Where scores are equal, a
choice seeded by the parameter's name decides: every process makes the same one, every time, and what a mask of a higher
sparsity keeps, one of a lower keeps too.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from trainwright.recipes.pruning.patterns import Pattern


def lowest(scores: Tensor, count: int, name: str) -> Tensor:
    """True at the ``count`` lowest of ``scores`` (one dimension).

    >>> lowest(torch.tensor([3.0, 1.0, 2.0, 9.0]), 2, "weight")
    tensor([False,  True,  True, False])
    """
    total = scores.numel()
    if count <= 0 or count >= total:
        return torch.full_like(scores, count > 0, dtype=torch.bool)
    border = scores.kthvalue(count).values
    chosen = scores < border
    missing = count - int(chosen.sum())
    equal = (scores == border).nonzero().flatten()
    if missing < equal.numel():
        equal = equal[_shuffled(equal.numel(), name, equal.device)[:missing]]
    chosen[equal] = True
    return chosen


def mask_of(
    scores: Tensor, sparsity: float, pattern: Pattern | None = None, *, name: str = "", kept: Tensor | None = None
) -> Tensor:
    """The mask of one weight; what ``kept`` masks already stays masked.

    >>> mask_of(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 0.5)
    tensor([[False, False],
            [ True,  True]])
    """
    return masks_of(
        {name: scores}, {name: sparsity}, pattern or Pattern(), kept=None if kept is None else {name: kept}
    )[name]


def masks_of(
    scores: Mapping[str, Tensor],
    sparsities: Mapping[str, float],
    pattern: Pattern,
    *,
    kept: Mapping[str, Tensor] | None = None,
    together: bool = False,
) -> dict[str, Tensor]:
    """Masks of several weights; ``together`` ranks all of them in one list (their sparsities must then be equal)."""
    units: dict[str, Tensor] = {}
    sizes: dict[str, Tensor | None] = {}
    for name, score in scores.items():
        if bool(score.isnan().any()):
            raise ValueError(
                f"{name} holds values that are not numbers (NaN), so it cannot be pruned: look at the loss before "
                "this step; a lower learning rate or max_grad_norm may help."
            )
        units[name] = _unit_scores(score, pattern, None if kept is None else kept.get(name))
        size = pattern.sizes(score.shape)
        sizes[name] = None if size is None else size.to(score.device)
    if not together:
        return {
            name: pattern.spread(
                ~_choose(unit, sizes[name], sparsities[name], scores[name].numel(), name), scores[name]
            )
            for name, unit in units.items()
        }
    return _masks_together(scores, units, sizes, sparsities, pattern)


def _masks_together(
    scores: Mapping[str, Tensor],
    units: dict[str, Tensor],
    sizes: dict[str, Tensor | None],
    sparsities: Mapping[str, float],
    pattern: Pattern,
) -> dict[str, Tensor]:
    device = next(iter(units.values())).device
    dtype = torch.float64 if any(unit.dtype == torch.float64 for unit in units.values()) else torch.float32
    joined = torch.cat([unit.to(device, dtype) for unit in units.values()])
    joined_sizes = _joined_sizes(scores, units, sizes)
    total = sum(score.numel() for score in scores.values())
    sparsity = next(iter(sparsities.values()))
    dropped = _choose(joined, joined_sizes, sparsity, total, "\n".join(units))
    parts = dropped.split([unit.numel() for unit in units.values()])
    return {
        name: pattern.spread(~part.to(scores[name].device), scores[name])
        for name, part in zip(units, parts, strict=True)
    }


def _joined_sizes(
    scores: Mapping[str, Tensor], units: dict[str, Tensor], sizes: dict[str, Tensor | None]
) -> Tensor | None:
    device = next(iter(units.values())).device
    means = {name: scores[name].numel() // max(unit.numel(), 1) for name, unit in units.items()}
    if len(set(means.values())) == 1 and all(size is None for size in sizes.values()):
        return None
    known = [
        torch.full((unit.numel(),), means[name], device=device) if size is None else size.to(device)
        for (name, unit), size in zip(units.items(), sizes.values(), strict=True)
    ]
    return torch.cat(known)


def _unit_scores(score: Tensor, pattern: Pattern, kept: Tensor | None) -> Tensor:
    score = score.detach()
    if score.dtype not in (torch.float32, torch.float64):
        score = score.float()
    if kept is None:
        return pattern.unit_scores(score)
    if pattern.group is not None:
        # The lowest of their group; but where more than M - N of a group are zero already, the pattern comes first.
        return pattern.unit_scores(score.masked_fill(~kept, float("-inf")))
    return pattern.unit_scores(score).masked_fill(~pattern.any_of(kept), float("-inf"))


def _choose(units: Tensor, sizes: Tensor | None, sparsity: float, total: int, name: str) -> Tensor:
    """Which units to mask, so that the number of weights in them comes nearest to ``sparsity * total``."""
    already = int(units.isneginf().sum())
    candidates = units.numel() - int(units.isposinf().sum())
    if sizes is None:
        per_unit = total / max(units.numel(), 1)
        count = round(sparsity * total / per_unit) if total else 0
    else:
        order = units.argsort(stable=True)
        reached = functional.pad(sizes[order].cumsum(0), (1, 0)).double()
        count = int((reached - sparsity * total).abs().argmin())
    return lowest(units, min(max(count, already), candidates), name)


def seed_of(name: str) -> int:
    """The same number for the same name, in every process."""
    return zlib.crc32(name.encode())


def _shuffled(count: int, name: str, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(seed_of(name))
    return torch.randperm(count, generator=generator).to(device)
