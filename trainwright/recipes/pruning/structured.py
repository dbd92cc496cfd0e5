"""Structured pruning: whole filters or channels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from trainwright.core.modifier import Site
from trainwright.recipes.pruning.channels import find_spaces
from trainwright.recipes.pruning.cutting import output_dimension
from trainwright.recipes.pruning.gradual import GradualPruningModifier, magnitudes
from trainwright.recipes.pruning.masks import lowest
from trainwright.recipes.selecting import suggestion


@dataclass(kw_only=True, eq=False)
class StructuredPruningModifier(GradualPruningModifier):
    """Masks the filters (outputs) or channels (inputs) with the smallest l2 norm; LayerThinningModifier takes them out.

    Members of one of ``param_groups`` lose the same indices, by the sum of their norms: needed where a residual
    connection adds their outputs. With ``mask_type: filter`` the bias of a filter is masked with it, and so are scale
    and shift of a batch norm that follows, where tracing the model finds it: a filter that is off says nothing. Weights
    with a single channel (depthwise convolutions) are left alone. Without ``params`` it is about the weights in
    ``param_groups`` or, without those too, about all whose outputs only other layers read.

    >>> StructuredPruningModifier(init_sparsity=0.0, final_sparsity=0.5, end_epoch=1).mask_type
    'filter'
    """

    param_groups: list[list[str]] | None = None
    mask_type: str | list[int] = "filter"
    global_sparsity: bool | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.mask_type not in ("filter", "channel"):
            raise ValueError(f"mask_type={self.mask_type!r}: StructuredPruningModifier knows 'filter' and 'channel'.")
        self.param_groups = self._groups = [list(group) for group in self.param_groups or []]
        named = [name for group in self._groups for name in group]
        are_named = isinstance(self.final_sparsity, dict)
        #: Nobody said which weights: those whose outputs another layer reads, never the model's own answer.
        self._chooses = self.params is None and not named and not are_named
        if self.params is None and named and not are_named:
            self.params = named
        super().__post_init__()
        if twice := [name for name in named if named.count(name) > 1]:
            raise ValueError(f"param_groups names {twice[0]!r} twice: a weight belongs to one group.")
        #: Weight -> one-dimensional parameters that are masked with its filters.
        self._companions: dict[str, list[str]] = {}

    def chosen_parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        chosen = super().chosen_parameters(model)
        if not self._chooses or self.mask_type != "filter":
            return chosen
        try:
            inner = {f"{layer}.weight" for space in find_spaces(model) for layer in space.producers}
        except ValueError:
            inner = set()
        if not inner & chosen.keys():
            raise ValueError(
                f"No layer of {type(model).__name__} was found whose outputs only other layers read, and the model's "
                "own answer must not lose a filter: name the weights in params."
            )
        return {name: weight for name, weight in chosen.items() if name in inner}

    def prepare_model(self, model: nn.Module) -> None:
        super().prepare_model(model)
        assert self._names is not None
        for group in self._groups:
            for name in group:
                if name not in self._names:
                    raise ValueError(f"param_groups: {name!r} is not among params{suggestion(name, self._names)}.")
        self._companions = self._find_companions(model) if self.mask_type == "filter" else {}
        extra = [name for names in self._companions.values() for name in names]
        self._names += [name for name in dict.fromkeys(extra) if name not in self._names]

    def _find_companions(self, model: nn.Module) -> dict[str, list[str]]:
        assert self._names is not None
        named, layers = dict(model.named_parameters()), dict(model.named_modules())
        answer: dict[str, list[str]] = {}
        for name in self._names:
            layer = layers.get(name.rpartition(".")[0])
            bias = name.removesuffix("weight") + "bias"
            if name.endswith("weight") and bias in named and layer is not None and output_dimension(layer) == 0:
                answer[name] = [bias]
        for members, followers in self._norms_behind(model).items():
            answer.setdefault(members, []).extend(name for name in followers if name in named)
        return {weight: [name for name in names if name not in self._names] for weight, names in answer.items()}

    def _norms_behind(self, model: nn.Module) -> dict[str, list[str]]:
        """Weight -> scales and shifts that see its outputs and nobody else's."""
        assert self._names is not None
        groups = [{name.rpartition(".")[0] for name in group} for group in self._grouped(self._names)]
        try:
            spaces = find_spaces(model)
        except ValueError:
            # Thinning asks for a map then; here the biases have to do.
            return {}
        found: dict[str, list[str]] = {}
        for space in spaces:
            makers = list(space.producers)
            if any(set(makers) <= group for group in groups):
                bare = [f"{layer}.{part}" for layer in space.along for part in ("weight", "bias")]
                named = dict(model.named_parameters())
                found[f"{makers[0]}.weight"] = [name for name in bare if name in named and named[name].dim() == 1]
        return found

    def _grouped(self, names: Iterable[str]) -> list[list[str]]:
        together = {name for group in self._groups for name in group}
        return [*self._groups, *([name] for name in names if name not in together)]

    def scored(self, site: Site) -> dict[str, nn.Parameter]:
        extra = {name for names in self._companions.values() for name in names}
        return {name: weight for name, weight in self.weights(site).items() if name not in extra}

    def scores(self, site: Site) -> dict[str, Tensor]:
        return magnitudes(self.scored(site))

    def masks_for(self, site: Site, scores: dict[str, Tensor], targets: dict[str, float]) -> dict[str, Tensor]:
        masks: dict[str, Tensor] = {}
        for group in self._grouped(scores):
            there = [name for name in group if name in scores]
            if len({targets[name] for name in there}) > 1:
                raise ValueError(f"{', '.join(there)} are one of param_groups, so they need the same final_sparsity.")
            masks |= self._group_masks({name: scores[name] for name in there}, targets)
        for name, companions in self._companions.items():
            for companion in companions if name in masks else []:
                weight = self.weights(site).get(companion)
                if weight is not None:
                    units = self.pattern.any_of(self._as_output_first(name, masks[name]))
                    masks[companion] = units if units.shape == weight.shape else torch.ones_like(weight).bool()
        return masks

    def _group_masks(self, scores: dict[str, Tensor], targets: dict[str, float]) -> dict[str, Tensor]:
        masks: dict[str, Tensor] = {}
        norms: dict[str, Tensor] = {}
        for name, score in scores.items():
            if bool(score.isnan().any()):
                raise ValueError(f"{name} holds values that are not numbers (NaN), so it cannot be pruned.")
            view = self._as_output_first(name, score)
            norm = self.pattern.unit_scores(view.float() if view.dtype != torch.float64 else view)
            if norm.numel() == 1:
                masks[name] = torch.ones_like(score).bool()
            else:
                norms[name] = norm.masked_fill(~self.pattern.any_of(self._as_output_first(name, self.masks[name])), 0)
        if not norms:
            return masks
        size = min(norm.numel() for norm in norms.values())
        if odd := [name for name, norm in norms.items() if norm.numel() % size]:
            raise ValueError(
                f"param_groups: the size of {odd[0]} is no multiple of {size}, so it cannot share indices."
            )
        dead = [self._dead(name, size) for name in norms]
        first = next(iter(norms))
        total = torch.stack([norm.view(size, -1).mean(1).to(norms[first].device) for norm in norms.values()]).sum(0)
        total = total.masked_fill(torch.stack(dead).all(0).to(total.device), float("-inf"))
        count = max(round(targets[first] * size), int(total.isneginf().sum()))
        kept = ~lowest(total, count, first)
        for name, norm in norms.items():
            view = self._as_output_first(name, scores[name])
            units = kept.to(view.device).repeat_interleave(norm.numel() // size)
            masks[name] = self._as_output_first(name, self.pattern.spread(units, view)).contiguous()
        return masks

    def _dead(self, name: str, size: int) -> Tensor:
        return ~self.pattern.any_of(self._as_output_first(name, self.masks[name])).view(size, -1).any(1)
