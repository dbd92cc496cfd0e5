"""Pruning that grows from one sparsity to another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trainwright.config.warnings import warn
from trainwright.core.dtensors import whole
from trainwright.core.modifier import Site
from trainwright.recipes.dtensors import placed
from trainwright.recipes.pruning.base import PruningModifier
from trainwright.recipes.pruning.masks import masks_of
from trainwright.recipes.pruning.sparsity import checked_interpolation, checked_share, interpolate, progress_between
from trainwright.recipes.selecting import ALL_PRUNABLE, select_parameters, sparsity_of

FROM_PARAM = "__FROM_PARAM__"
#: How far a final sparsity may be from that of its N:M pattern, which decides.
_NEAR = 0.01


@dataclass(kw_only=True, eq=False)
class GradualPruningModifier(PruningModifier):
    """Scores decide which weights go; the schedule decides how many.

    Zeros of a model that is already sparse count: they are the first to be masked, and a weight never becomes denser
    than it was, unless ``final_sparsity`` asks for that. Where it is below ``init_sparsity``, weights come back
    as zeros that learn again.
    """

    #: Whether all weights are ranked in one list; None leaves it to ``global_sparsity``.
    ranks_together: ClassVar[bool | None] = False

    init_sparsity: float | str
    final_sparsity: float | dict[Any, list[str]]
    params: str | Iterable[str] | None = None
    inter_func: str = "cubic"
    global_sparsity: bool | None = None

    def __post_init__(self) -> None:
        is_mapping = isinstance(self.final_sparsity, dict)
        if is_mapping and self.params:
            raise ValueError("final_sparsity names the parameters itself, so params must be []: take one of them away.")
        self.params = self.params or ALL_PRUNABLE
        super().__post_init__()
        if self.end_epoch == -1:
            raise ValueError("end_epoch=-1: sparsity grows until end_epoch, so name the epoch where it is reached.")
        if self.init_sparsity != FROM_PARAM:
            self.init_sparsity = checked_share(self.init_sparsity, "init_sparsity")
        self._wanted = self._final_shares(self.final_sparsity)
        self.inter_func = checked_interpolation(self.inter_func)
        self.global_sparsity = self._scope(self.global_sparsity)
        if self.global_sparsity and is_mapping:
            raise ValueError("final_sparsity by parameter cannot be global: use MagnitudePruningModifier, or a number.")
        #: Whether weights come back: from zero, and free to learn again.
        self._falls = isinstance(self.init_sparsity, float) and self.init_sparsity > max(self._wanted)
        #: Sparsity of each weight before the first update.
        self._found: dict[str, float] = {}
        self._original_sizes: dict[str, int] = {}

    def _scope(self, asked: bool | None) -> bool:
        if self.ranks_together is None:
            return bool(asked)
        if asked is not None and asked != self.ranks_together:
            other = "MagnitudePruningModifier" if self.ranks_together else "GlobalMagnitudePruningModifier"
            raise ValueError(f"global_sparsity={asked} is not what {type(self).__name__} does: use {other}.")
        return self.ranks_together

    def _final_shares(self, final: float | dict[Any, list[str]]) -> dict[float, list[str]]:
        shares = final if isinstance(final, dict) else {final: []}
        limit = self.pattern.densest_final
        answer: dict[float, list[str]] = {}
        for share, names in shares.items():
            share = checked_share(share, "final_sparsity")
            if limit is not None:
                if abs(share - limit) > _NEAR:
                    raise ValueError(f"final_sparsity={share} does not fit mask_type={self.mask_type!r}: use {limit}.")
                share = limit
            answer.setdefault(share, []).extend([names] if isinstance(names, str) else names)
        return answer

    def chosen_parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        if not isinstance(self.final_sparsity, dict):
            return super().chosen_parameters(model)
        return select_parameters(model, [name for names in self._wanted.values() for name in names], "final_sparsity")

    def _final_for(self, site: Site) -> dict[str, float]:
        if not isinstance(self.final_sparsity, dict):
            return dict.fromkeys(self.scored(site), next(iter(self._wanted)))
        finals: dict[str, float] = {}
        for share, patterns in self._wanted.items():
            for name in select_parameters(site.model, patterns, "final_sparsity"):
                finals.setdefault(name, share)
        return {name: finals[name] for name in self.scored(site) if name in finals}

    def scored(self, site: Site) -> dict[str, nn.Parameter]:
        """The weights that have a sparsity of their own."""
        return self.weights(site)

    # ---- schedule

    def begin(self, site: Site, epoch: float) -> None:
        finals = self._final_for(site)
        weights = self.scored(site)
        self._found = {name: sparsity_of(whole(weight.detach())) for name, weight in weights.items()}
        self._original_sizes = {name: self._size(name, weight) for name, weight in weights.items()}
        if self.global_sparsity:
            zeros = sum(self._found[name] * size for name, size in self._original_sizes.items())
            total = zeros / max(sum(self._original_sizes.values()), 1)
            self._found = dict.fromkeys(self._found, total)
        for name, weight in weights.items():
            is_sparser = self._found[name] > finals[name]
            keeps_zeros = self._found[name] > 0 and (not is_sparser or self.init_sparsity == FROM_PARAM)
            if is_sparser and keeps_zeros:
                warn(
                    f"{name} is {self._found[name]:.1%} zeros already, more than final_sparsity={finals[name]}: it "
                    "stays as sparse as it is."
                )
            if keeps_zeros:
                self.masks[name] = placed(self._units_alive(name, whole(weight.detach()) != 0), weight)
            else:
                self.masks[name] = torch.ones_like(weight).bool()
        self.kept_changed()

    def _size(self, name: str, weight: Tensor) -> int:
        # Inputs that thinning took away are no filters that are gone.
        at = self.pattern.dimension
        return weight.numel() if at is None else self._as_output_first(name, weight).shape[at]

    def _units_alive(self, name: str, nonzero: Tensor) -> Tensor:
        view = self._as_output_first(name, nonzero)
        return self._as_output_first(name, self.pattern.spread(self.pattern.any_of(view), view)).contiguous()

    def targets(self, site: Site, epoch: float) -> dict[str, float]:
        """The sparsity of each weight at ``epoch``; what thinning took away counts as zeros."""
        progress = progress_between(epoch, self.start_epoch, self.end_epoch)
        answer: dict[str, float] = {}
        for name, final in self._final_for(site).items():
            if self.init_sparsity == FROM_PARAM:
                first = self._found[name]
            else:
                first = float(self.init_sparsity) if self._falls else min(float(self.init_sparsity), final)
            share = interpolate(progress, first, final, self.inter_func)
            left = self._size(name, self.weights(site)[name]) / self._original_sizes[name]
            answer[name] = share if left == 1 else max(share - (1 - left), 0.0) / left
        return answer

    def scores(self, site: Site) -> dict[str, Tensor]:
        """How much each weight matters; the lowest go first."""
        raise NotImplementedError

    def update(self, site: Site, epoch: float) -> None:
        self.set_masks(site, self.masks_for(site, self.scores(site), self.targets(site, epoch)))

    def masks_for(self, site: Site, scores: dict[str, Tensor], targets: dict[str, float]) -> dict[str, Tensor]:
        """Masks from scores, in which what is masked stays masked, unless sparsity falls."""
        kept = {name: self._as_output_first(name, whole(mask)) for name, mask in self.masks.items()}
        masks = masks_of(
            {name: self._as_output_first(name, whole(score)) for name, score in scores.items()},
            targets,
            self.pattern,
            kept=None if self._falls else kept,
            together=bool(self.global_sparsity),
        )
        return {name: self._as_output_first(name, mask) for name, mask in masks.items()}

    # ---- state

    def values_to_save(self) -> dict[str, Any]:
        return {"found": self._found, "sizes": self._original_sizes}

    def load_saved(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        super().load_saved(tensors, values)
        self._found, self._original_sizes = dict(values["found"]), dict(values["sizes"])


def magnitudes(weights: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    """The plainest score: how far from zero."""
    return {name: weight.detach().abs() for name, weight in weights.items()}
