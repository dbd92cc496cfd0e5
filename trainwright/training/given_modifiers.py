"""Modifiers that are given among callbacks: regularisers, and those of a user's own."""

from __future__ import annotations

from typing import Any

from trainwright.config.registry import find, is_registered
from trainwright.core.modifier import Modifier
from trainwright.training.setup import Setup


def take_modifiers(setup: Setup, callbacks: list[Any] | None) -> list[Any]:
    """Put those among ``callbacks`` that are modifiers, made or by class or name, to the recipe's; return the rest."""
    rest = []
    for given in callbacks or []:
        kind = find("callback", given, "callbacks") if is_registered("callback", given) else given
        made = kind() if isinstance(kind, type) and issubclass(kind, Modifier) else kind
        if isinstance(made, Modifier):
            setup.modifiers.append(made)
        else:
            rest.append(given)
    return rest


def refuse_late_modifier(callback: Any) -> None:
    """A modifier takes part in preparing the model, so it has to be there from the beginning."""
    if isinstance(callback, Modifier) or (isinstance(callback, type) and issubclass(callback, Modifier)):
        name = callback.__name__ if isinstance(callback, type) else type(callback).__name__
        raise ValueError(f"{name} changes the training itself: give it to the Trainer as callbacks=[{name}(...)].")
