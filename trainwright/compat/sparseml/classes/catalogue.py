"""From modifiers of ours to SparseML's objects around them, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainwright.compat.sparseml.classes.acting import FromPython, acting
from trainwright.compat.sparseml.classes.bases import BaseObject
from trainwright.compat.sparseml.classes.lifecycle import Modifier
from trainwright.compat.sparseml.classes.shipped import Shipped, hold, is_held
from trainwright.compat.sparseml.pytorch.sparsification import distillation, modifier_thinning, pruning, training
from trainwright.compat.sparseml.pytorch.sparsification.quantization import legacy_modifier_quantization as older
from trainwright.compat.sparseml.pytorch.sparsification.quantization import modifier_quantization as newer
from trainwright.core.modifier import Modifier as NativeModifier
from trainwright.recipes.building import build_modifier
from trainwright.recipes.language.records import ModifierSpec
from trainwright.recipes.quantization.legacy import OLDER

_CLASSES: dict[str, type[Shipped]] = {
    name: found
    for module in (training, pruning, distillation, modifier_thinning, newer)
    for name, found in vars(module).items()
    if isinstance(found, type) and issubclass(found, Shipped) and found.kind == name
}


class Other(Shipped):
    """A modifier that SparseML does not have."""

    def __str__(self) -> str:
        lines = super().__str__().splitlines()
        return "\n".join([f"!{type(self.native).__name__}", *lines[1:]])


def shipped_from(spec: ModifierSpec) -> Any:
    """SparseML's object for an entry of a recipe."""
    return object_for(build_modifier(spec))


def object_for(modifier: Any) -> Any:
    """SparseML's object for a modifier of ours; what is one already is returned as it is."""
    if isinstance(modifier, BaseObject):
        return modifier
    if isinstance(modifier, FromPython):
        return modifier.written
    if isinstance(modifier, type):
        raise ValueError(f"{modifier.__name__} is a class, and a modifier is wanted: {modifier.__name__}(...).")
    if not isinstance(modifier, NativeModifier):
        raise ValueError(
            f"{modifier!r} is no modifier: pass objects such as EpochRangeModifier(0.0, 3.0); text goes to from_yaml()."
        )
    spec = modifier.written_as
    arguments: Mapping[str, Any] | None = None if spec is None else spec.arguments
    kind = type(modifier).__name__ if spec is None else spec.kind
    if kind == "QuantizationModifier" and any(name in (arguments or {}) for name in OLDER):
        return older.QuantizationModifier.around(modifier, arguments)
    return _CLASSES.get(kind, Other).around(modifier, arguments)


def native_for(modifier: Any) -> NativeModifier:
    """The modifier that does the work."""
    if isinstance(modifier, NativeModifier):
        return modifier
    if isinstance(modifier, Shipped) and not _is_extended(type(modifier)):
        return modifier.native
    if isinstance(modifier, Modifier):
        return acting(modifier)
    raise ValueError(f"{modifier!r} is no modifier: derive its class from ScheduledModifier.")


def native_to_train(modifier: Any) -> NativeModifier:
    """The same for one manager alone: it was in no other, or is made anew from its settings."""
    if isinstance(modifier, Shipped) and not _is_extended(type(modifier)):
        if not modifier.enabled:
            raise ValueError(
                f"{type(modifier).__name__} is switched off (enabled = False), which a manager does not follow: leave "
                "it out of the list."
            )
        if is_held(modifier.native):
            modifier.renew()
        hold(modifier.native)
        return modifier.native
    if is_held(modifier):
        # What somebody's own class remembers of the other training is not known here.
        raise ValueError(f"This {type(modifier).__name__} is in another manager: make a new one for this.")
    found = native_for(modifier)
    hold(modifier)
    return found


def rate_setters(modifiers: list[NativeModifier]) -> list[NativeModifier]:
    """Those that set the learning rate now."""
    inner = [m.written.native if isinstance(m, FromPython) and isinstance(m.written, Shipped) else m for m in modifiers]
    return [m for m in inner if m.sets_learning_rate and m.is_active]


def _is_extended(cls: type[Shipped]) -> bool:
    """Whether somebody's own class does more than the one it derives from."""
    names = ("initialize", "update", "loss_update", "optimizer_pre_step", "optimizer_post_step", "finalize")
    return any(getattr(cls, name) is not getattr(Shipped, name) for name in names)
