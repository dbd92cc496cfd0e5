"""A module that has PyMarlin's methods without being a ``ModuleInterface``: an object of one's own, or a mock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from trainwright.compat.pymarlin.core.module_interface import CallbackInterface, ModuleInterface

_NEEDED = tuple(sorted(ModuleInterface.__abstractmethods__))
_HOOKS = tuple(name for name in vars(CallbackInterface) if name.startswith("on_"))
_OTHERS = ("get_test_dataloaders", "test_step", "get_state", "update_state", "count_targets")
#: Of torch's; an object that has these too needs no help where it is called by a loop of one's own.
_OF_TORCH = ("forward", "to", "train", "eval")


def as_module(given: Any, *, natively: bool) -> Any:
    """``given`` if it can be trained as it is, else a module that passes every call on to it."""
    if isinstance(given, ModuleInterface):
        return given
    missing = [name for name in _NEEDED if not callable(getattr(given, name, None))]
    if missing:
        raise ValueError(
            f"module must be a ModuleInterface or have its methods; {type(given).__name__} lacks {', '.join(missing)}: "
            "derive it from ModuleInterface."
        )
    is_whole = all(callable(getattr(given, name, None)) for name in (*_HOOKS, *_OF_TORCH, "get_state", "update_state"))
    if is_whole and (not natively or isinstance(given, nn.Module)):
        return given
    names = [name for name in (*_NEEDED, *_HOOKS, *_OTHERS) if callable(getattr(given, name, None))]
    kind = type(ModuleInterface)(f"{type(given).__name__}Module", (_Passing,), {n: _passing_on(n) for n in names})
    return kind(given)


class _Passing(ModuleInterface):
    """Has the weights of ``given``: a torch module's as they are, else those of the torch modules in its attributes."""

    def __init__(self, given: Any) -> None:
        super().__init__()
        vars(self)["given"] = given
        if isinstance(given, nn.Module):
            vars(self).update({kind: vars(given)[kind] for kind in ("_parameters", "_buffers", "_modules")})
            return
        found = {name: part for name, part in vars(given).items() if isinstance(part, nn.Module)}
        # Not add_module: it takes an attribute that is passed on for one that is in the way.
        vars(self)["_modules"].update(found)

    def train(self, mode: bool = True) -> Any:
        given = vars(self)["given"]
        if isinstance(given, nn.Module):
            given.train(mode)
        return super().train(mode)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(vars(self)["given"], name)


def _passing_on(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(vars(self)["given"], name)(*args, **kwargs)

    return method
