"""Thinning: filters that are zero are taken out, and the model becomes smaller."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.core.modifier import Site
from trainwright.recipes.pruning.channels import Space, find_spaces
from trainwright.recipes.pruning.cutting import Replaced, cut_layer, fit_to_shapes, is_by_channel, output_dimension
from trainwright.recipes.pruning.per_weight import TakesLogTypes, ignore_frequency
from trainwright.recipes.selecting import suggestion

logger = logging.getLogger("trainwright")

#: Layer -> outputs and inputs to keep; None for all.
Cuts = dict[str, tuple[Tensor | None, Tensor | None]]
_SAME_MOMENT = 1e-6


@dataclass(kw_only=True, eq=False)
class LayerThinningModifier(TakesLogTypes):
    """Takes zero filters (or channels) out of the layers, and the inputs that read them out of the next ones.

    Happens at ``start_epoch`` where that is 0 or more, at each of ``update_epochs``, and after training where it never
    happened. The outputs are those of the masked model. Which layers depend on which is found by tracing the model; a
    model that cannot be traced needs ``param_group_dependency_map``: ``{"a.weight,b.weight": ["c.weight"]}``
    cuts ``a`` and ``b`` where they are zero, and what reads them alike. ``strict`` refuses a group whose members are
    not zero in the same places; otherwise what is zero in all of them goes.

    >>> LayerThinningModifier(update_epochs=[1.0, 2.0]).final_epoch
    2.0
    """

    changes_structure = True
    needs_whole_tensors = True

    param_group_dependency_map: dict[str, list[str]] | None = None
    structure_type: str = "filter"
    update_epochs: list[float] | None = None
    strict: bool = True

    def __post_init__(self) -> None:
        if self.end_epoch != -1:
            raise ValueError(f"end_epoch={self.end_epoch}: what is taken out does not come back; leave end_epoch out.")
        ignore_frequency(self)
        super().__post_init__()
        if self.structure_type not in ("filter", "channel"):
            raise ValueError(f"structure_type={self.structure_type!r} must be 'filter' or 'channel'.")
        self._due = [float(epoch) for epoch in self.update_epochs or []]
        if self._due != sorted(set(self._due)):
            raise ValueError(f"update_epochs={self.update_epochs} must rise from one to the next.")
        self._last: float | None = None
        self._rebuild: Callable[[Replaced], None] | None = None
        #: Parameters and buffers that have another size than the model was built with.
        self._shapes: dict[str, list[int]] = {}

    def prepare_model(self, model: nn.Module) -> None:
        if self.param_group_dependency_map is None:
            find_spaces(model)
        else:
            for names in self.param_group_dependency_map:
                for name in names.split(","):
                    _owner(model, name.strip())

    def resume(self, site: Site, epoch: float) -> None:
        self._rebuild = site.rebuild

    def begin(self, site: Site, epoch: float) -> None:
        self._rebuild = site.rebuild
        if self.start_epoch >= 0:
            self._thin(site.model, epoch)

    def update(self, site: Site, epoch: float) -> None:
        last = -1.0 if self._last is None else self._last
        if any(last < due <= epoch + _SAME_MOMENT for due in self._due):
            self._thin(site.model, epoch)

    def _thin(self, model: nn.Module, epoch: float) -> None:
        self._last = epoch
        before = _all_shapes(model)
        replaced = thin(model, self.param_group_dependency_map, self.structure_type, strict=self.strict)
        self._shapes |= {name: shape for name, shape in _all_shapes(model).items() if before[name] != shape}
        if replaced and self._rebuild is not None:
            self._rebuild(replaced)

    def finish_model(self, model: nn.Module) -> None:
        if self._last is None:
            self._thin(model, self.final_epoch)

    @property
    def final_epoch(self) -> float:
        return max(self.start_epoch, 0.0, *self._due)

    def values_to_save(self) -> dict[str, Any]:
        return {"last": self._last, "shapes": self._shapes}

    def load_saved(self, tensors: dict[str, Any], values: dict[str, Any]) -> None:
        self._last, self._shapes = values["last"], dict(values["shapes"])

    def restore_structure(self, model: nn.Module, values: dict[str, Any]) -> None:
        """Give a freshly built model the sizes that ``values_to_save`` tells of, before weights are loaded."""
        fit_to_shapes(model, values["shapes"])

    def forget(self) -> None:
        super().forget()
        self._last, self._shapes = None, {}


def thin(
    model: nn.Module,
    dependency_map: dict[str, list[str]] | None = None,
    structure_type: str = "filter",
    *,
    strict: bool = True,
) -> Replaced:
    """Take zero filters or channels out of ``model``, in place; returns ``{old parameter: (new, kept)}``.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> with torch.no_grad():
    ...     model[0].weight[:5], model[0].bias[:5] = 0, 0
    >>> _ = thin(model)
    >>> model[0].out_features, model[2].in_features
    (3, 3)
    """
    layers = dict(model.named_modules())
    if dependency_map is None:
        cuts = _traced_cuts(model, layers, structure_type)
    else:
        cuts = _mapped_cuts(model, dependency_map, structure_type, strict)
    replaced: Replaced = {}
    for name, (outputs, inputs) in cuts.items():
        replaced |= cut_layer(layers[name], outputs, inputs)
    return replaced


def _all_shapes(model: nn.Module) -> dict[str, list[int]]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name: list(tensor.shape) for name, tensor in tensors}


def _zero_slices(layer: nn.Module, is_output: bool) -> Tensor:
    weight: Tensor = layer.weight  # type: ignore[assignment]
    at = output_dimension(layer)
    at = at if is_output else 1 - at
    return (weight.detach().transpose(0, at).reshape(weight.shape[at], -1) == 0).all(1)


def _add_cut(cuts: Cuts, name: str, *, outputs: Tensor | None = None, inputs: Tensor | None = None) -> None:
    old = cuts.get(name, (None, None))
    cuts[name] = (old[0] if outputs is None else outputs, old[1] if inputs is None else inputs)


def _widened(keep: Tensor, size: int) -> Tensor:
    """Indices to keep of ``size`` neighbours, where each channel has several."""
    return keep.repeat_interleave(size // keep.numel()).nonzero().flatten()


# ---- by tracing


def _traced_cuts(model: nn.Module, layers: dict[str, nn.Module], structure_type: str) -> Cuts:
    cuts: Cuts = {}
    for space in find_spaces(model):
        if structure_type == "filter":
            gone = torch.stack([_zero_slices(layers[name], True) for name in space.producers]).all(0)
            gone &= _can_go_unseen(space, layers, gone)
        else:
            reads = [_zero_slices(layers[name], False).view(space.count, -1).all(1) for name in space.consumers]
            gone = torch.stack(reads).all(0)
        if bool(gone.all()):
            # A layer without outputs is no layer.
            gone[0] = False
        if not bool(gone.any()):
            continue
        if structure_type == "filter":
            _fold_constants(space, layers, gone)
        keep = ~gone
        for name in [*space.producers, *space.along]:
            _add_cut(cuts, name, outputs=keep.nonzero().flatten())
        for name in space.consumers:
            weight: Tensor = layers[name].weight  # type: ignore[assignment]
            _add_cut(cuts, name, inputs=_widened(keep, weight.shape[1 - output_dimension(layers[name])]))
    return cuts


def _can_go_unseen(space: Space, layers: dict[str, nn.Module], gone: Tensor) -> Tensor:
    """Where what a consumer reads from a dead channel is nothing, or can go into its bias."""
    fine = torch.ones_like(gone)
    for name, constant in space.consumers.items():
        layer: Any = layers[name]
        padding = getattr(layer, "padding", 0)
        is_padded = any(padding) if isinstance(padding, tuple) else bool(padding)
        fine &= (constant == 0) if is_padded or layer.bias is None else constant.isfinite()
    if held := int((gone & ~fine).sum()):
        logger.info("%d zero filters of %s stay: what follows them sees more than zeros", held, list(space.producers))
    return fine


@torch.no_grad()
def _fold_constants(space: Space, layers: dict[str, nn.Module], gone: Tensor) -> None:
    for name, constant in space.consumers.items():
        layer: Any = layers[name]
        seen = torch.where(gone, constant, 0)
        if bool(seen.any()):
            # Each channel of a flattened picture, or of a kernel, has several neighbours.
            effect = layer.weight.reshape(layer.weight.shape[0], space.count, -1).sum(2)
            layer.bias.add_(effect @ seen.to(effect.dtype))


# ---- by a map


def _owner(model: nn.Module, name: str) -> tuple[str, nn.Module]:
    owner, _, attribute = name.rpartition(".")
    layer = dict(model.named_modules()).get(owner)
    if layer is None or not isinstance(getattr(layer, attribute, None), Tensor):
        hint = suggestion(name, dict(model.named_parameters()))
        raise ValueError(f"param_group_dependency_map: the model has no {name!r}{hint}.")
    return owner, layer


def _mapped_cuts(model: nn.Module, groups: dict[str, list[str]], structure_type: str, strict: bool) -> Cuts:
    is_filter = structure_type == "filter"
    cuts: Cuts = {}
    for names, readers in groups.items():
        members = dict(_owner(model, name.strip()) for name in names.split(","))
        keep = _group_keep(members, is_filter, strict)
        if keep is None or bool(keep.all()):
            continue
        for name, layer in members.items():
            weight: Tensor = layer.weight  # type: ignore[assignment]
            if is_by_channel(layer):
                _add_cut(cuts, name, outputs=_widened(keep, weight.shape[0]))
            else:
                at = output_dimension(layer) if is_filter else 1 - output_dimension(layer)
                _add_cut(cuts, name, **{"outputs" if is_filter else "inputs": _widened(keep, weight.shape[at])})
        for reader in readers:
            name, layer = _owner(model, reader)
            weight = layer.weight  # type: ignore[assignment]
            if is_by_channel(layer) or weight.dim() == 1:
                _add_cut(cuts, name, outputs=_widened(keep, weight.shape[0]))
            else:
                at = 1 - output_dimension(layer) if is_filter else output_dimension(layer)
                _add_cut(cuts, name, **{"inputs" if is_filter else "outputs": _widened(keep, weight.shape[at])})
    return cuts


def _group_keep(members: dict[str, nn.Module], is_filter: bool, strict: bool) -> Tensor | None:
    dead = {name: _zero_slices(layer, is_filter) for name, layer in members.items() if not is_by_channel(layer)}
    if not dead:
        return None
    size = min(len(zero) for zero in dead.values())
    if odd := [name for name, zero in dead.items() if len(zero) % size]:
        raise ValueError(f"param_group_dependency_map: the sizes of {list(members)} do not fit ({odd[0]}).")
    together = {name: zero.view(size, -1) for name, zero in dead.items()}
    first = next(iter(together.values())).all(1)
    for name, zero in together.items():
        if strict and not (torch.equal(zero.all(1), first) and torch.equal(zero.any(1), first)):
            raise ValueError(
                f"{', '.join(members)} are not zero in the same places ({name}): prune them as one of param_groups of "
                "StructuredPruningModifier, or set strict: false."
            )
    gone = torch.stack([zero.all(1) for zero in together.values()]).all(0)
    if bool(gone.all()):
        gone[0] = False
    return ~gone
