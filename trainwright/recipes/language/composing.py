"""One recipe after another: what was done to a model before, and what is done to it now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.recipes.language.records import ModifierSpec, Recipe, Stage

#: What these do has no end: with one, layers would come back, or the recipe would be refused.
_STAY = frozenset(
    {
        "LayerPruningModifier",
        "LayerThinningModifier",
        "QuantizationModifier",
        "SetLearningRateModifier",
        "SetParamModifier",
        "SetWeightDecayModifier",
    }
)
#: Arguments besides start and end that are moments of the training.
_MOMENTS = ("disable_quantization_observer_epoch", "freeze_bn_stats_epoch")


def compose_staged(base: Recipe, additional: Recipe, *, keep_original_epochs: bool = False) -> Recipe:
    """``base`` and then ``additional``, as a recipe of stages.

    The epochs of ``additional`` count from where ``base`` ends, and what had no end in ``base`` ends there; with
    ``keep_original_epochs`` neither is touched. Recipes without stages become ``stage_0`` and ``stage_1``, or fit their
    name to the stages of the other.

    >>> from trainwright.recipes.language.reading import read_recipe
    >>> epochs = read_recipe({"modifiers": [{"EpochRangeModifier": {"start_epoch": 0, "end_epoch": 3}}]})
    >>> both = compose_staged(epochs, epochs)
    >>> {stage.name: stage.modifiers[0].arguments for stage in both.stages}
    {'stage_0': {'start_epoch': 0, 'end_epoch': 3}, 'stage_1': {'start_epoch': 3, 'end_epoch': 6}}
    """
    first, second = _named(base, additional)
    shared = [stage.name for stage in first if stage.name in {other.name for other in second}]
    if shared:
        raise ConfigError(f"Both recipes have a stage {', '.join(map(str, shared))}: rename it in one of them.")
    if not keep_original_epochs:
        end = _same_kind(base.max_epochs)
        if end > 0:
            first = _changed(first, lambda spec: _ended(spec, end))
        second = _changed(second, lambda spec: _shifted(spec, end))
    stages = (*first, *second)
    if any(stage.metadata is not None for stage in stages):
        # All or none: what has nothing to say says so.
        stages = tuple(replace(stage, metadata=stage.metadata or {}) for stage in stages)
    return Recipe(stages, additional.version or base.version, source=f"{base.source} + {additional.source}")


def _named(base: Recipe, additional: Recipe) -> tuple[tuple[Stage, ...], tuple[Stage, ...]]:
    if base.is_staged and additional.is_staged:
        return base.stages, additional.stages
    if base.is_staged:
        return base.stages, _as_stage(additional, f"stage_{len(base.stages) + 1}")
    if additional.is_staged:
        return _as_stage(base, f"pre_{additional.stages[0].name}"), additional.stages
    return _as_stage(base, "stage_0"), _as_stage(additional, "stage_1")


def _as_stage(recipe: Recipe, name: str) -> tuple[Stage, ...]:
    return (replace(recipe.stages[0], name=name, metadata=recipe.metadata, variables=recipe.variables),)


def _changed(stages: tuple[Stage, ...], change: Callable[[ModifierSpec], ModifierSpec]) -> tuple[Stage, ...]:
    return tuple(replace(stage, modifiers=tuple(change(spec) for spec in stage.modifiers)) for stage in stages)


def _ended(spec: ModifierSpec, end: float) -> ModifierSpec:
    if spec.kind in _STAY or spec.arguments.get("end_epoch", -1) != -1:
        return spec
    return replace(spec, arguments={**spec.arguments, "end_epoch": end})


def _shifted(spec: ModifierSpec, by: float) -> ModifierSpec:
    arguments = dict(spec.arguments)
    arguments["start_epoch"] = _later(arguments.get("start_epoch", 0.0), by)
    if "end_epoch" in arguments and arguments["end_epoch"] != -1:
        arguments["end_epoch"] = _later(arguments["end_epoch"], by)
    for name in _MOMENTS:
        if name in arguments:
            arguments[name] = _later(arguments[name], by)
    if isinstance(arguments.get("update_epochs"), list):
        arguments["update_epochs"] = [_later(epoch, by) for epoch in arguments["update_epochs"]]
    options = arguments.get("lr_kwargs")
    if isinstance(options, dict) and isinstance(options.get("milestones"), list):
        # Counted from the beginning of the training, not of the modifier.
        arguments["lr_kwargs"] = {**options, "milestones": [_later(epoch, by) for epoch in options["milestones"]]}
    return replace(spec, arguments=arguments)


def _later(epoch: object, by: float) -> Any:
    """-1, which is the beginning, is where the other recipe ends; what is no number stays for others to judge."""
    is_number = isinstance(epoch, (int, float)) and not isinstance(epoch, bool)
    return max(type(epoch)(0), epoch) + by if is_number else epoch


def _same_kind(epochs: float) -> float:
    """Whole numbers stay whole: some modifiers count in whole epochs."""
    return int(epochs) if epochs == int(epochs) else epochs
