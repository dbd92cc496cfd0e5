"""What SparseML's modifiers of every framework have in common: properties, schedules, and how they are written."""

from __future__ import annotations

import hashlib
from typing import Any

from trainwright.compat.sparseml.classes.properties import ModifierProp
from trainwright.compat.sparseml.classes.texts import as_text, load_modifier, load_modifiers
from trainwright.compat.sparseml.sparsification.types import SparsificationTypes


class BaseObject:
    """Ends a chain of constructors: whatever keyword arrives here is one that nobody takes."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        if kwargs:
            raise ValueError(f"{type(self).__name__} has no argument {', '.join(kwargs)}.")


class BaseModifier(BaseObject):
    """Properties, and how they are written as an entry of a recipe."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._initialized = False
        self._enabled = True

    @staticmethod
    def load_framework_list(yaml_str: str, framework: str) -> Any:
        """The modifiers of a recipe: a list, or by stage where it has stages."""
        return load_modifiers(yaml_str, framework)

    @staticmethod
    def load_framework_obj(yaml_str: str, framework: str) -> Any:
        """The one modifier that ``yaml_str`` describes."""
        return load_modifier(yaml_str, framework)

    @staticmethod
    def yaml_key(clazz: type, framework: str | None = None) -> str:
        """How a recipe names the class: ``!Name``, or ``!framework.Name``."""
        return f"!{clazz.__name__}" if framework is None else f"!{framework}.{clazz.__name__}"

    @ModifierProp(serializable=False)
    def sparsification_types(self) -> list[SparsificationTypes]:
        """What kinds of change it makes."""
        return []

    @ModifierProp(serializable=False, restrict_initialized=False)
    def initialized(self) -> bool:
        """Whether it knows its model."""
        return self._initialized

    @ModifierProp(serializable=False, restrict_initialized=False)
    def enabled(self) -> bool:
        """Whether it acts."""
        return self._enabled

    @enabled.setter
    def enabled(self, value: bool) -> None:
        self._enabled = value

    def props(self, only_serializable: bool, format_str: bool = False, format_repr: bool = False) -> dict[str, Any]:
        """Properties by name, in alphabetical order; as text for a recipe (``format_str``) or for people."""
        if format_str and format_repr:
            raise ValueError("format_str and format_repr exclude each other: pass one of them.")
        found: dict[str, Any] = {}
        for name in dir(type(self)):
            prop = None if name.startswith("_") else getattr(type(self), name)
            if not isinstance(prop, ModifierProp) or (only_serializable and not prop.serializable):
                continue
            value = getattr(self, name)
            if value is not prop.no_serialize_val and value != prop.no_serialize_val:
                found[name] = as_text(value) if format_str else repr(value) if format_repr else value
        return found

    def identifier(self, extra: object = "") -> str:
        """The same text for modifiers of the same class with the same properties."""
        pairs = sorted(f"{name}:{value}" for name, value in self.props(True, format_str=True).items())
        digest = hashlib.md5(str(pairs).encode(), usedforsecurity=False).hexdigest()
        return f"{type(self).__name__}-{digest}{f'-{extra}' if extra else ''}"

    def __str__(self) -> str:
        lines = [f"    {name}: {value}" for name, value in self.props(True, format_str=True).items()]
        return "\n".join([BaseModifier.yaml_key(type(self)), *lines])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.props(False, format_repr=True)})"


class BaseScheduled(BaseObject):
    """From ``start_epoch`` to ``end_epoch``; -1 is the beginning, or no end.

    ``end_comparator`` says what ``end_epoch`` may be: -1 allows -1, 0 the start and later, 1 only later, None only what
    it was constructed with.
    """

    def __init__(
        self,
        start_epoch: float = -1.0,
        min_start: float = -1.0,
        end_epoch: float = -1.0,
        min_end: float = -1.0,
        end_comparator: int | None = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._start_epoch, self._min_start = float(start_epoch), float(min_start)
        self._end_epoch, self._min_end = float(end_epoch), float(min_end)
        self._init_end, self._end_comparator = self._end_epoch, end_comparator
        self.validate_schedule()

    @ModifierProp()
    def start_epoch(self) -> float:
        """When it begins; -1 is at once."""
        return self._start_epoch

    @start_epoch.setter
    def start_epoch(self, value: float) -> None:
        self._start_epoch = value
        self.validate_schedule()

    @ModifierProp()
    def end_epoch(self) -> float:
        """When it ends; -1 is never."""
        return self._end_epoch

    @end_epoch.setter
    def end_epoch(self, value: float) -> None:
        self._end_epoch = value
        self.validate_schedule()

    def advance_epochs(self, ref_start_epoch: float | None = None) -> None:
        """Let it begin ``ref_start_epoch`` epochs later."""
        if ref_start_epoch is None:
            return
        self._start_epoch = max(0.0, self._start_epoch) + ref_start_epoch
        if self._init_end != -1:
            self._init_end += ref_start_epoch
        if self._end_epoch != -1:
            self._end_epoch += ref_start_epoch
        self.validate_schedule()

    def validate_schedule(self) -> None:
        """An error where the epochs do not fit each other."""
        start, end, rule = self._start_epoch, self._end_epoch, self._end_comparator
        allowed = {
            "start_epoch": start >= self._min_start,
            "end_epoch": end >= self._min_end
            and (rule is not None or end == self._init_end)
            and (rule != -1 or end == -1 or end >= start)
            and (rule != 0 or end >= start)
            and (rule != 1 or end > start),
        }
        for name, is_allowed in allowed.items():
            if not is_allowed:
                raise ValueError(
                    f"{type(self).__name__}: {name} does not fit: start_epoch={start}, end_epoch={end}; they begin at "
                    f"{self._min_start} and {self._min_end}, and the end comes after the start."
                )


class BaseUpdate(BaseObject):
    """Acts every ``update_frequency`` epochs between start and end; -1 is after every step."""

    def __init__(self, update_frequency: float, min_frequency: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._update_frequency, self._min_frequency = update_frequency, min_frequency
        self.validate_update()

    @ModifierProp()
    def update_frequency(self) -> float:
        """Epochs from one update to the next."""
        return self._update_frequency

    @update_frequency.setter
    def update_frequency(self, value: float) -> None:
        self._update_frequency = value
        self.validate_update()

    def validate_update(self) -> None:
        """An error where updates would come too often."""
        if self._update_frequency < self._min_frequency:
            raise ValueError(
                f"{type(self).__name__}: update_frequency={self._update_frequency} must be {self._min_frequency} or "
                "more."
            )
