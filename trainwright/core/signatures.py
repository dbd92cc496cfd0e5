"""Calling what users wrote against any version of the API: pass only what a signature takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def accepted_keywords(function: Callable[..., Any], offered: tuple[str, ...]) -> frozenset[str]:
    """Those of ``offered`` that ``function`` takes by keyword."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return frozenset(offered)
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return frozenset(offered)
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return frozenset(names & set(offered))


def takes_positionally(function: Callable[..., Any], count: int) -> bool:
    """Whether ``function`` can be called with ``count`` arguments by their place."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:
        # Written in C: it says nothing.
        return True
    return True


def forward_parameters(model: Any) -> dict[str, inspect.Parameter]:
    """Parameters of ``model.forward``; what calls several networks alike says itself what they take."""
    own = getattr(model, "forward_parameters", None)
    return dict(inspect.signature(model.forward).parameters) if own is None else own()


def takes_keyword(parameters: dict[str, inspect.Parameter], name: str) -> bool:
    """Whether a forward with these parameters can be given ``name`` by keyword."""
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def label_names(model: Any) -> list[str]:
    """Names under which ``model.forward`` takes targets; ``labels`` where it takes none."""
    names = forward_parameters(model)
    found = [name for name in names if "label" in name]
    if "QuestionAnswering" in type(model).__name__:
        found += [name for name in ("start_positions", "end_positions") if name in names]
    return found or ["labels"]


def returns_loss_by_default(model: Any) -> bool:
    """Whether ``forward(return_loss=True)`` is the default, as in contrastive models."""
    parameter = forward_parameters(model).get("return_loss")
    return parameter is not None and parameter.default is True
