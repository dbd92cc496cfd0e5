"""What a manager of modifiers holds, and how it is written."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainwright.compat.sparseml.classes.bases import BaseModifier, BaseObject
from trainwright.compat.sparseml.classes.catalogue import object_for
from trainwright.compat.sparseml.classes.texts import as_text
from trainwright.compat.sparseml.phases import of_type, phase_at, qat_active_at
from trainwright.compat.sparseml.recipe_texts import framework_versions
from trainwright.compat.sparseml.sparsification.types import SparsificationTypes
from trainwright.config.secrets import redacted_values
from trainwright.recipes.language.metadata import FRAMEWORK, metadata_from, with_metadata
from trainwright.recipes.language.reading import read_recipe
from trainwright.recipes.language.records import METADATA, Recipe

logger = logging.getLogger("trainwright")

#: Of the language that recipes are written in, not of a library.
_VERSION = "1.1.0"


class BaseManager(BaseObject):
    """Modifiers by kind and by stage, with their epochs, as a recipe; SparseML's objects, or modifiers of ours."""

    def __init__(
        self,
        modifiers: list[Any] | dict[str, list[Any]],
        metadata: dict[str, Any] | None = None,
        *,
        recipe: Recipe | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not isinstance(modifiers, (list, tuple, dict)):
            raise ValueError(f"modifiers= is a list, or a dict of lists by stage, not a {type(modifiers).__name__}.")
        self._listed: list[Any] = []
        self._stages: OrderedDict[str, list[Any]] | None = None
        if isinstance(modifiers, dict):
            self._stages = OrderedDict((stage, _sorted(_objects(own))) for stage, own in modifiers.items())
        else:
            self._listed = _sorted(_objects(modifiers))
        self._recipe = recipe
        self._metadata: dict[str, Any] | None = None
        if metadata is not None:
            own = {name: value for name, value in metadata.items() if name != FRAMEWORK}
            known = metadata_from(list(own), own)
            known[FRAMEWORK] = framework_versions()
            self._metadata = redacted_values(known)
            if recipe is not None:
                self._recipe = with_metadata(_without_metadata(recipe), self._metadata)

    def __iter__(self) -> Iterator[Any]:
        return self.iter_modifiers()

    def iter_modifiers(self) -> Iterator[Any]:
        """One stage after the other, each in the order in which its modifiers act."""
        lists = [self._listed] if self._stages is None else self._stages.values()
        return iter([modifier for own in lists for modifier in own])

    @property
    def modifiers(self) -> Any:
        """A list, or by stage where the recipe has stages."""
        return self._listed if self._stages is None else self._stages

    @property
    def pruning_modifiers(self) -> list[Any]:
        """Those that take weights, filters or layers away."""
        return of_type(self, SparsificationTypes.pruning)

    @property
    def quantization_modifiers(self) -> list[Any]:
        """Those that round."""
        return of_type(self, SparsificationTypes.quantization)

    @property
    def distillation_modifiers(self) -> list[Any]:
        """Those that listen to a teacher."""
        return of_type(self, SparsificationTypes.distillation)

    @property
    def learning_rate_modifiers(self) -> list[Any]:
        """Those that set the learning rate."""
        return of_type(self, SparsificationTypes.learning_rate)

    @property
    def epoch_modifiers(self) -> list[Any]:
        """Those that say how long the training is."""
        return of_type(self, SparsificationTypes.epoch)

    @property
    def structured_modifiers(self) -> list[Any]:
        """Those that make another model of it."""
        return of_type(self, SparsificationTypes.structured)

    @property
    def max_epochs(self) -> int:
        """Whole epochs until the last modifier has ended, or begun where it never ends; 0 where none says."""
        moments = [epoch for m in self for epoch in _epochs(m) if epoch > -1]
        return math.ceil(max(moments, default=0.0))

    @property
    def min_epochs(self) -> int:
        """The whole epoch in which the first modifier begins; 0 where none says."""
        return math.floor(min((start for m in self if (start := _epochs(m)[0]) > -1), default=0.0))

    def num_stages(self) -> int:
        """How many stages the recipe has."""
        return 1 if self._stages is None else len(self._stages)

    def get_start_end_epochs(self) -> dict[str, tuple[float, float]]:
        """When each stage begins and ends; ``"all"`` where there are none."""
        if self._stages is None:
            return {"all": (float(self.min_epochs), float(self.max_epochs))}
        return self.written().stage_epochs()

    def get_last_start_epoch(self) -> float:
        """When the last stage begins."""
        return max(list(self.get_start_end_epochs().values())[-1][0], 0.0)

    def phase(self, epoch: float) -> str | None:
        """ "dense", "pruned", "dense_quantized", "pruned_quantized" or "quantized_pruned"; None in between."""
        return phase_at(list(self), epoch)

    def qat_active(self, epoch: float) -> bool:
        """Whether anything is rounded within this epoch."""
        return qat_active_at(list(self), epoch)

    # ---- as text

    @property
    def metadata(self) -> Any:
        """What the recipe says it was used with."""
        if self._recipe is None:
            return self._metadata
        stages = self._recipe.stages
        return {stage.name: stage.metadata for stage in stages} if self._recipe.is_staged else self._recipe.metadata

    def written(self) -> Recipe:
        """As a recipe; from its own text where it was made of modifiers, or one of them was changed."""
        if self._recipe is None or any(getattr(modifier, "is_changed", False) for modifier in self):
            return read_recipe(str(self))
        return self._recipe

    def to_string_lines(self, include_metadata: bool = True) -> list[str]:
        """The recipe with every variable evaluated, line by line."""
        known = self.metadata if include_metadata else None
        lines = [f"version: {_VERSION}", ""]
        if self._stages is None:
            about = ["", *_about(known)] if known is not None else [""]
            return [lines[0], *about, "modifiers:", *_entries(self._listed)]
        for name, own in self._stages.items():
            lines += [f"{name}:"]
            if include_metadata:
                lines += [f"  {line}".rstrip() for line in _about((known or {}).get(name))]
            lines += [f"  {name}_modifiers:", *(f"  {line}" for line in _entries(own)), ""]
        return lines

    def __str__(self) -> str:
        return "\n".join(self.to_string_lines())

    def save(self, file_path: str | Path, include_metadata: bool = True) -> None:
        """Write the recipe; reading the file gives the same modifiers."""
        path = Path(file_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(self.to_string_lines(include_metadata)) + "\n", encoding="utf-8")


def _without_metadata(recipe: Recipe) -> Recipe:
    if any(part.metadata for part in (recipe, *recipe.stages)):
        logger.warning("%s: its %s is overwritten.", recipe.source, METADATA)
    stages = tuple(dataclasses.replace(stage, metadata=None) for stage in recipe.stages)
    return dataclasses.replace(recipe, stages=stages, metadata=None)


def _objects(modifiers: Iterable[Any]) -> list[Any]:
    if not isinstance(modifiers, (list, tuple)):
        raise ValueError(f"Each stage is a list of modifiers, not {modifiers!r}: put it into [].")
    return [object_for(modifier) for modifier in modifiers]


def _sorted(modifiers: list[Any]) -> list[Any]:
    """As they act: those that end first, and of the rest those that begin first."""
    return sorted(modifiers, key=lambda m: (end if (end := _epochs(m)[1]) != -1 else math.inf, _epochs(m)[0]))


def _epochs(modifier: Any) -> tuple[float, float]:
    return getattr(modifier, "start_epoch", -1.0), getattr(modifier, "end_epoch", -1.0)


def _about(metadata: Mapping[str, Any] | None) -> list[str]:
    if metadata is None:
        return [f"{METADATA}: None", ""]
    return [f"{METADATA}:", *_nested(metadata, "  "), ""]


def _nested(values: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}:"
            yield from _nested(value, f"{indent}  ")
        else:
            yield f"{indent}{name}: {value if value is None or _is_version(name) else as_text(value)}"


def _is_version(name: str) -> bool:
    return name.endswith("_version")


def _entries(modifiers: list[BaseModifier]) -> Iterator[str]:
    """Modifiers that begin and end together in alphabetical order: the same recipe is the same text."""
    for modifier in _sorted(sorted(modifiers, key=lambda one: one.identifier())):
        first, *rest = str(modifier).splitlines()
        yield f"    - {first}"
        yield from (f"    {line}" for line in rest)
        yield ""
