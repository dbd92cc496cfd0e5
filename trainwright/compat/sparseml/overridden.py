"""Managers of somebody's own, whose methods are called at the moments of SparseML's."""

from __future__ import annotations

from typing import Any

from torch import nn

from trainwright.core.modifier import Modifier, Site

_METHODS = ("update", "loss_update", "optimizer_pre_step", "optimizer_post_step")


def overrides(cls: type, base: type) -> bool:
    """Whether ``cls`` has another of the methods that are called in each step."""
    return any(getattr(cls, name) is not getattr(base, name) for name in _METHODS)


class AsOverridden(Modifier):
    """Stands in a loop for all modifiers of ``manager`` and calls its methods: ``update`` just before each step."""

    def __init__(self, manager: Any, modifiers: list[Modifier]) -> None:
        super().__init__()
        self._manager, self._modifiers = manager, modifiers
        self._at: tuple[Any, Any, float, float] | None = None

    def prepare_model(self, model: nn.Module) -> None:
        for modifier in self._modifiers:
            modifier.prepare_model(model)

    def extra_parameters(self) -> dict[str, Any]:
        return {
            f"{number}.{name}": parameter
            for number, modifier in enumerate(self._modifiers)
            for name, parameter in modifier.extra_parameters().items()
        }

    def replaced(self, mapping: dict[Any, Any]) -> None:
        for modifier in self._modifiers:
            modifier.replaced(mapping)

    def advance(self, site: Site, epoch: float) -> None:
        is_first = self._at is None
        whole, rest = divmod(round(epoch * site.steps_per_epoch), site.steps_per_epoch)
        # As SparseML counts, to the last bit.
        self._at = (site.model, site.optimizer, float(whole) + rest / site.steps_per_epoch, site.steps_per_epoch)
        if is_first:
            for modifier in self._modifiers:
                if modifier.has_begun:
                    modifier.resume(site, epoch)
            # What is due at the start changes weights, so it must come before a loss is computed with them.
            self._manager.update(*self._at)

    def before_update(self, site: Site) -> None:
        assert self._at is not None
        self._manager.update(*self._at)
        self._manager.optimizer_pre_step(*self._at)

    def after_update(self, site: Site) -> None:
        assert self._at is not None
        self._manager.optimizer_post_step(*self._at)
