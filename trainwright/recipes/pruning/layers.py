"""Layer pruning: whole layers let their input through."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from trainwright.core.modifier import Site
from trainwright.recipes.pruning.per_weight import TakesLogTypes, ignore_frequency
from trainwright.recipes.selecting import select_layers

_SIMPLE = (str, int, float, bool, type(None))


class PassThrough(nn.Module):
    """Stands where a layer was and returns its first input, in the form in which that layer returned its result.

    >>> PassThrough(nn.LSTM(2, 2))("input", None)
    ('input', None)
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.length = returned_length(layer)
        # Models ask their layers for such things: the kind of attention, the index.
        for name, value in vars(layer).items():
            if not name.startswith("_") and isinstance(value, _SIMPLE) and name not in ("training", "length"):
                setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The first input."""
        return _passed(self.length, args, kwargs)


def _passed(length: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    first = args[0] if args else next(iter(kwargs.values()))
    return first if length == 0 else (first, *[None] * (length - 1))


def returned_length(layer: nn.Module) -> int:
    """How long the tuple is that a layer returns; 0 where it is none. Read from its code: annotations err.

    >>> returned_length(nn.Linear(1, 1)), returned_length(nn.LSTM(1, 1))
    (0, 2)
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(type(layer).forward)))
    except (OSError, TypeError, SyntaxError):
        return 0
    returned = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return) and node.value is not None]
    tuples = [value for value in returned if isinstance(value, ast.Tuple)]
    if tuples and len(tuples) == len(returned):
        return len(tuples[-1].elts)
    names = {value.id for value in returned if isinstance(value, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id in names for t in node.targets):
            value = node.value.left if isinstance(node.value, ast.BinOp) else node.value
            if isinstance(value, ast.Tuple):
                return len(value.elts)
    return 0


@dataclass(kw_only=True, eq=False)
class LayerPruningModifier(TakesLogTypes):
    """Takes layers out from ``start_epoch`` on; they come back at ``end_epoch`` where that is given.

    Without ``end_epoch`` the layers are gone for good, with their weights. With it they stay in the model, unused and
    untrained, until then. ``layers``: full names or ``re:pattern``.

    >>> LayerPruningModifier(layers=["bert.encoder.layer.6"], start_epoch=2).final_epoch
    2.0
    """

    changes_structure = True

    layers: str | Iterable[str]

    def __post_init__(self) -> None:
        ignore_frequency(self)
        # At the very beginning there would be nothing to come back from.
        self.end_epoch = self.end_epoch if self.end_epoch > 0 else -1.0
        super().__post_init__()
        self.layers = self.layers if isinstance(self.layers, str) else list(self.layers)
        self._names: list[str] = []
        self._are_out = False
        #: Parameters that left the model when it was prepared.
        self._gone: list[nn.Parameter] = []

    @property
    def is_for_good(self) -> bool:
        """Whether the layers never come back."""
        return self.end_epoch == -1

    def prepare_model(self, model: nn.Module) -> None:
        if self._are_out and self.is_for_good:
            return
        chosen = select_layers(model, self.layers)
        # What lies inside a layer that goes, goes with it.
        self._names = [n for n in chosen if not any(n != outer and n.startswith(f"{outer}.") for outer in chosen)]
        if self.start_epoch <= 0 and self.is_for_good:
            self._gone = self._take_out(model)

    def begin(self, site: Site, epoch: float) -> None:
        if not self._names:
            self.prepare_model(site.model)
        gone = self._gone if self._are_out else self._take_out(site.model)
        groups = site.optimizer.param_groups if site.optimizer is not None else []
        trained = {id(parameter) for group in groups for parameter in group["params"]}
        was_prepared, self._gone = bool(self._gone), []
        if was_prepared and not any(id(parameter) in trained for parameter in gone):
            # The optimizer was made afterwards and has never heard of them.
            return
        if site.rebuild is not None:
            site.rebuild(dict.fromkeys(gone, (None, None)))

    def _take_out(self, model: nn.Module) -> list[nn.Parameter]:
        """Returns the parameters that the model no longer has."""
        self._are_out = True
        before = list(model.parameters())
        for name in self._names:
            layer = model.get_submodule(name)
            if self.is_for_good:
                model.set_submodule(name, PassThrough(layer))
            else:
                _bypass(layer)
        left = {id(parameter) for parameter in model.parameters()}
        return [parameter for parameter in before if id(parameter) not in left]

    def end(self, site: Site, epoch: float) -> None:
        self._are_out = False
        self._put_back(site.model)
        if site.rebuild is not None:
            site.rebuild({})

    def _put_back(self, model: nn.Module) -> None:
        for name in self._names:
            # The layer's class has its own forward; this one lay over it.
            vars(model.get_submodule(name)).pop("forward", None)

    @property
    def final_epoch(self) -> float:
        return max(self.start_epoch, self.end_epoch, 0.0)

    def values_to_save(self) -> dict[str, Any]:
        return {"names": self._names, "are_out": self._are_out}

    def load_saved(self, tensors: dict[str, Any], values: dict[str, Any]) -> None:
        self._names, self._are_out = list(values["names"]), values["are_out"]

    def restore_structure(self, model: nn.Module, values: dict[str, Any]) -> None:
        """Take the layers that ``values_to_save`` tells of out of a freshly built model, before weights are loaded."""
        self._names = list(values["names"])
        if values["are_out"] and not (self._are_out and self.is_for_good):
            self._take_out(model)

    def resume(self, site: Site, epoch: float) -> None:
        if self.is_for_good:
            return
        if self._are_out:
            self._take_out(site.model)
        else:
            self._put_back(site.model)

    def forget(self) -> None:
        super().forget()
        # Layers that are gone for good stay gone.
        self._are_out = self._are_out and self.is_for_good


def _bypass(layer: nn.Module) -> None:
    length = returned_length(layer)
    vars(layer)["forward"] = lambda *args, **kwargs: _passed(length, args, kwargs)
