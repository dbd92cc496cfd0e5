"""From what somebody wrote, a name or a name with options, to the loss that is called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from trainwright.config.options import fitting_options
from trainwright.config.registry import find, suggestion

#: What a loss function is called with, and no setting of it.
_CALLED_WITH = frozenset({"outputs", "labels", "num_items_in_batch"})


def chosen_loss(given: Callable[..., Tensor] | str | Mapping[str, Any] | None) -> Callable[..., Tensor] | None:
    """A loss as it was given, or the one of that name: ``"focal"``, ``{"name": "focal", "gamma": 1.5}``.

    >>> chosen_loss({"name": "focal", "gamma": 1.5}).gamma
    1.5
    """
    if isinstance(given, Mapping):
        options = dict(given)
        name = options.pop("name", None)
        if not isinstance(name, str):
            raise ValueError("compute_loss_func={...} needs the name of a loss: {'name': 'focal', 'gamma': 2.0}.")
        return made_loss(find("loss", name, "compute_loss_func"), options)
    if isinstance(given, str):
        return made_loss(find("loss", given, "compute_loss_func"), {})
    if isinstance(given, type):
        raise ValueError(f"compute_loss_func={given.__name__} is a class: make one of it, {given.__name__}().")
    return given


def made_loss(found: Any, options: Mapping[str, Any]) -> Callable[..., Tensor]:
    """The loss that a class makes of ``options``, or a function with them; options that it has not are refused."""
    if isinstance(found, type):
        return found(**fitting_options(found, options))
    if not options:
        return found
    takes = [name for name in inspect.signature(found).parameters if name not in _CALLED_WITH]
    for name in options:
        if name not in takes:
            listed = ", ".join(takes) or "none"
            raise ValueError(f"there is no option {name!r}{suggestion(name, takes)}; there are {listed}.")
    return functools.partial(found, **options)
