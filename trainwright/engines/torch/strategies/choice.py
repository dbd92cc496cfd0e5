"""The strategy that a training's arguments name."""

from __future__ import annotations

from trainwright.config.arguments import TrainingArguments
from trainwright.config.parallel import way_of
from trainwright.config.registry import find
from trainwright.engines.torch.strategies.base import Strategy, StrategyContext


def choose_strategy(context: StrategyContext) -> Strategy:
    """The strategy for a training; whatever cannot go with it is refused here, before any work."""
    name = way_of(context.args) or ("ddp" if context.backend.world_size > 1 else "sp")
    return _named(name).made_for(context)


def places_model(args: TrainingArguments) -> bool:
    """Whether the strategy brings the model to the device, part by part: whole it may not fit."""
    name = way_of(args)
    return name is not None and _named(name).places_model


def _named(name: str) -> type[Strategy]:
    found = find("strategy", name, "backend")
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise ValueError(f"backend={name!r} is {found!r}, which is no subclass of {Strategy.__module__}.Strategy.")
    return found
