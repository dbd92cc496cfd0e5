"""Properties of modifiers that a recipe is written from, and that stay as they are once a modifier has its model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any


class BaseProp(ABC):
    """A property that cannot be deleted."""

    @abstractmethod
    def __get__(self, obj: Any, obj_type: type | None = None) -> Any: ...

    @abstractmethod
    def __set__(self, obj: Any, value: Any) -> None: ...

    def __delete__(self, obj: Any) -> None:
        raise AttributeError("A property of a modifier cannot be deleted.")

    @abstractmethod
    def getter(self, func_get: Callable[[Any], Any]) -> Any:
        """The same with another way to read it."""

    @abstractmethod
    def setter(self, func_set: Callable[[Any, Any], None]) -> Any:
        """The same with another way to set it."""


class ModifierProp(BaseProp):
    """Like ``property``; those that are ``serializable`` are written into recipes.

    ``restrictions`` are attributes of the object that forbid a change while they are true: by default it cannot be
    set once the modifier, or the manager that it is in, was initialized. A value that equals ``no_serialize_val`` is
    not written.

    >>> class Half:
    ...     _initialized = False
    ...     _share = 0.5
    ...     @ModifierProp()
    ...     def share(self):
    ...         return self._share
    ...     @share.setter
    ...     def share(self, value):
    ...         self._share = value
    >>> half = Half()
    >>> half.share = 0.25
    >>> half._initialized = True
    >>> half.share = 0.75
    Traceback (most recent call last):
    AttributeError: Half.share cannot be changed any more: the modifier is in use.
    """

    def __init__(
        self,
        serializable: bool = True,
        restrict_initialized: bool = True,
        restrict_enabled: bool = False,
        restrict_extras: list[str] | None = None,
        no_serialize_val: Any = None,
        func_get: Callable[[Any], Any] | None = None,
        func_set: Callable[[Any, Any], None] | None = None,
        doc: str | None = None,
    ) -> None:
        self._func_get, self._func_set = func_get, func_set
        self.serializable, self.no_serialize_val = serializable, no_serialize_val
        self.restrictions = [
            *(["_initialized", "_is_held"] if restrict_initialized else []),
            *(["_enabled"] if restrict_enabled else []),
            *(restrict_extras or []),
        ]
        self.__doc__ = doc if doc is not None else getattr(func_get, "__doc__", None)
        self._name = getattr(func_get, "__name__", "This property")

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __call__(self, getter: Callable[[Any], Any]) -> ModifierProp:
        """Decorate ``getter``."""
        return self.getter(getter)

    def __get__(self, obj: Any, obj_type: type | None = None) -> Any:
        if obj is None:
            return self
        if self._func_get is None:
            raise AttributeError(f"{self._name} cannot be read.")
        return self._func_get(obj)

    def __set__(self, obj: Any, value: Any) -> None:
        if self._func_set is None:
            raise AttributeError(f"{type(obj).__name__}.{self._name} cannot be set.")
        if any(getattr(obj, name, False) for name in self.restrictions):
            raise AttributeError(
                f"{type(obj).__name__}.{self._name} cannot be changed any more: the modifier is in use."
            )
        self._func_set(obj, value)

    def getter(self, func_get: Callable[[Any], Any]) -> ModifierProp:
        return self._with(func_get, self._func_set)

    def setter(self, func_set: Callable[[Any, Any], None]) -> ModifierProp:
        return self._with(self._func_get, func_set)

    def _with(self, func_get: Any, func_set: Any) -> ModifierProp:
        return ModifierProp(
            serializable=self.serializable,
            restrict_initialized=False,
            restrict_extras=self.restrictions,
            no_serialize_val=self.no_serialize_val,
            func_get=func_get,
            func_set=func_set,
        )
