"""Modifiers that keep something for each of the weights they are about."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from trainwright.config.warnings import warn
from trainwright.core.modifier import Modifier, Site
from trainwright.recipes.dtensors import placed
from trainwright.recipes.selecting import ALL_PRUNABLE, select_parameters


def ignore_frequency(modifier: Modifier) -> None:
    """Take ``update_frequency`` back, and say once that it has no effect, where somebody set it."""
    if (frequency := modifier.update_frequency) != -1:
        warn(f"update_frequency={frequency} has no effect: {type(modifier).__name__} acts at its start and end only.")
    modifier.update_frequency = -1.0


@dataclass(kw_only=True, eq=False)
class TakesLogTypes(Modifier):
    """Takes ``log_types`` for old recipes' sake; it has no effect: what is logged goes to every tracker."""

    log_types: Any = "__ALL__"


@dataclass(kw_only=True, eq=False)
class PerWeightModifier(TakesLogTypes):
    """Keeps tensors of several kinds, each by name of a parameter and shaped like it: they are its state.

    They move to the weights' device when first needed, are saved and loaded, and follow when parameters are replaced.
    """

    #: What is kept of each weight.
    kinds: ClassVar[tuple[str, ...]] = ()

    params: str | Iterable[str] | None = ALL_PRUNABLE

    def __post_init__(self) -> None:
        super().__post_init__()
        self.params = self.params if isinstance(self.params, str) else list(self.params or [])
        #: Kind -> name of a parameter -> tensor.
        self.kept: dict[str, dict[str, Tensor]] = {kind: {} for kind in self.kinds}
        self._names: list[str] | None = None
        self._weights: dict[str, nn.Parameter] = {}

    def chosen_parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """What ``params`` selects."""
        return select_parameters(model, self.params or [])

    def prepare_model(self, model: nn.Module) -> None:
        self._names = list(self.chosen_parameters(model))

    def weights(self, site: Site) -> dict[str, nn.Parameter]:
        """The weights by name; looked up when first needed."""
        if not self._weights:
            if self._names is None:
                self.prepare_model(site.model)
            named = dict(site.model.named_parameters())
            # Layers may have been taken out since.
            self._weights = {name: named[name] for name in self._names or [] if name in named}
            for tensors in self.kept.values():
                for name in list(tensors):
                    tensor = tensors.pop(name)
                    if name in self._weights:
                        tensors[name] = placed(tensor, self._weights[name])
            self.kept_changed()
        return self._weights

    def kept_changed(self) -> None:
        """Something in ``kept`` is another tensor now."""

    def resume(self, site: Site, epoch: float) -> None:
        self.weights(site)

    def replaced(self, mapping: dict[Any, tuple[Any, Callable[[Any], Any] | None]]) -> None:
        for name, weight in list(self._weights.items()):
            new, kept = mapping.get(weight, (weight, None))
            if new is weight:
                continue
            if new is None:
                del self._weights[name]
            else:
                self._weights[name] = new
            for tensors in self.kept.values():
                tensor = tensors.pop(name, None)
                if tensor is not None and new is not None and kept is not None:
                    tensors[name] = kept(tensor).contiguous()
        self.kept_changed()

    def tensors_to_save(self) -> dict[str, Tensor]:
        return {f"{kind}.{name}": tensor for kind in self.kept for name, tensor in self.kept[kind].items()}

    def load_saved(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        for kind in self.kinds:
            prefix = f"{kind}."
            # Copies: some of them change in place, and the file they come from may be mapped into memory.
            self.kept[kind] = {n.removeprefix(prefix): t.clone() for n, t in tensors.items() if n.startswith(prefix)}
        self._weights = {}

    def forget(self) -> None:
        super().forget()
        self.kept = {kind: {} for kind in self.kinds}
        self._weights = {}
