"""A module that has PyMarlin's methods without being a ``ModuleInterface``: an object of one's own, or a mock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

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
    """Has the weights of ``given``: a torch module's as they are, else those in its attributes."""

    def __init__(self, given: Any) -> None:
        super().__init__()
        vars(self)["given"] = given
        if isinstance(given, nn.Module):
            vars(self).update({kind: vars(given)[kind] for kind in ("_parameters", "_buffers", "_modules")})
            return
        _hold_weights(self, given)

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


class _Several(nn.Module):
    """The weights in a list, tuple or dict of the object's: it gives them their names."""


def _hold_weights(holder: nn.Module, given: Any) -> None:
    """Give ``holder`` the modules and parameters in ``given``'s attributes, and in lists, tuples and dicts there."""
    found = list(_weights_in(given))
    for path, module in found:
        # An attribute keeps its name, also where another holds the same module.
        if isinstance(module, nn.Module) and len(path) == 1:
            _place(holder, path, "_modules", module)
    for path, module in found:
        if isinstance(module, nn.Module) and len(path) > 1 and all(module is not other for other in holder.modules()):
            _place(holder, path, "_modules", module)
    for path, parameter in found:
        # ``self.weights = list(self.net.parameters())`` holds nothing new.
        if isinstance(parameter, nn.Parameter) and all(parameter is not other for other in holder.parameters()):
            _place(holder, path, "_parameters", parameter)


def _weights_in(given: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in getattr(given, "__dict__", {}).items():
        parts = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
        )
        for key, part in [((name,), value), *(((name, str(place).replace(".", "_")), part) for place, part in parts)]:
            if isinstance(part, (nn.Module, nn.Parameter)):
                yield key, part


def _place(holder: nn.Module, path: tuple[str, ...], kind: str, value: Any) -> None:
    # Not add_module: it takes an attribute that is passed on for one that is in the way.
    for name in path[:-1]:
        holder = vars(holder)["_modules"].setdefault(name, _Several())
    vars(holder)[kind].setdefault(path[-1], value)


def refuse_weights_not_held(module: Any, optimizers: Iterable[Any], *, natively: bool) -> None:
    """What an optimizer trains and the module does not hold would be neither clipped nor saved nor restored."""
    trained = [parameter for optimizer in optimizers for parameter in _trained_by(optimizer)]
    if not trained:
        return
    held = (
        {id(parameter) for parameter in module.parameters()} if callable(getattr(module, "parameters", None)) else set()
    )
    missing = [parameter for parameter in trained if id(parameter) not in held]
    if missing and not natively:
        # A loop of one's own clips what it likes; it is enough that the state has it.
        kept = set(_places_of_tensors(module.get_state()))
        missing = [parameter for parameter in missing if parameter.data_ptr() not in kept]
    if missing:
        kind = type(vars(module)["given"] if isinstance(module, _Passing) else module).__name__
        raise ValueError(
            f"An optimizer of {kind} trains {len(missing)} tensor(s) that {kind} does not hold (the first has shape "
            f"{tuple(missing[0].shape)}): checkpoints would be without them. Make them in __init__ as nn.Module or "
            "nn.Parameter and keep each in an attribute (several in an nn.ModuleList, nn.ModuleDict or "
            "nn.ParameterList)."
        )


def _trained_by(optimizer: Any) -> list[Tensor]:
    # NoDPWrap has its optimizer inside.
    groups = getattr(getattr(optimizer, "optimizer", optimizer), "param_groups", ())
    return [parameter for group in groups for parameter in group["params"]]


def _places_of_tensors(state: Any) -> Iterator[int]:
    if isinstance(state, Tensor):
        yield state.data_ptr()
    elif isinstance(state, (dict, list, tuple)):
        for value in state.values() if isinstance(state, dict) else state:
            yield from _places_of_tensors(value)
