"""What a manager of modifiers holds, and how it is written."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainwright.compat.sparseml.phases import phase_at, prunes, qat_active_at, quantizes
from trainwright.core.modifier import Modifier
from trainwright.recipes.building import in_order
from trainwright.recipes.distillation.base import LearnsFromTeacher
from trainwright.recipes.language.metadata import metadata_from, with_metadata
from trainwright.recipes.language.records import Recipe
from trainwright.recipes.language.writing import write_recipe
from trainwright.recipes.scheduling.epochs import EpochRangeModifier


class ManagedModifiers:
    """Modifiers by kind and by stage, with their epochs, as the recipe that they come from."""

    def __init__(
        self,
        modifiers: list[Modifier] | dict[str, list[Modifier]],
        metadata: dict[str, Any] | None = None,
        *,
        recipe: Recipe | None = None,
    ) -> None:
        self._stages = modifiers if isinstance(modifiers, dict) else None
        listed = [m for stage in modifiers.values() for m in stage] if isinstance(modifiers, dict) else modifiers
        self._acting = in_order(list(listed))
        self._recipe = recipe
        if metadata is not None:
            self._recipe = with_metadata(self.written(), metadata_from(list(metadata), metadata))

    def __iter__(self) -> Iterator[Modifier]:
        return self.iter_modifiers()

    def iter_modifiers(self) -> Iterator[Modifier]:
        """In the order in which they act."""
        return iter(self._acting)

    @property
    def modifiers(self) -> list[Modifier] | dict[str, list[Modifier]]:
        """A list, or by stage where the recipe has stages."""
        return self._acting if self._stages is None else self._stages

    @property
    def pruning_modifiers(self) -> list[Modifier]:
        """Those that take weights, filters or layers away."""
        return [m for m in self if prunes(m)]

    @property
    def quantization_modifiers(self) -> list[Modifier]:
        """Those that round."""
        return [m for m in self if quantizes(m)]

    @property
    def distillation_modifiers(self) -> list[LearnsFromTeacher]:
        """Those that listen to a teacher."""
        return [m for m in self if isinstance(m, LearnsFromTeacher)]

    @property
    def learning_rate_modifiers(self) -> list[Modifier]:
        """Those that set the learning rate."""
        return [m for m in self if m.sets_learning_rate]

    @property
    def epoch_modifiers(self) -> list[Modifier]:
        """Those that say how long the training is."""
        return [m for m in self if isinstance(m, EpochRangeModifier)]

    @property
    def structured_modifiers(self) -> list[Modifier]:
        """Those that make another model of it."""
        return [m for m in self if m.changes_structure or quantizes(m)]

    @property
    def max_epochs(self) -> int:
        """Whole epochs until the last modifier has ended, or begun where it never ends; 0 where none says."""
        moments = [epoch for m in self for epoch in (m.start_epoch, m.end_epoch) if epoch > -1]
        return math.ceil(max(moments, default=0.0))

    @property
    def min_epochs(self) -> int:
        """The whole epoch in which the first modifier begins; 0 where none says."""
        return math.floor(min((m.start_epoch for m in self if m.start_epoch > -1), default=0.0))

    def num_stages(self) -> int:
        """How many stages the recipe has."""
        return 1 if self._recipe is None else len(self._recipe.stages)

    def get_start_end_epochs(self) -> dict[str, tuple[float, float]]:
        """When each stage begins and ends; ``"all"`` where there are none."""
        if self._recipe is None:
            return {"all": (float(self.min_epochs), float(self.max_epochs))}
        return self._recipe.stage_epochs()

    def phase(self, epoch: float) -> str | None:
        """ "dense", "pruned", "dense_quantized", "pruned_quantized" or "quantized_pruned"; None in between."""
        return phase_at(self._acting, epoch)

    def qat_active(self, epoch: float) -> bool:
        """Whether anything is rounded within this epoch."""
        return qat_active_at(self._acting, epoch)

    # ---- as text

    @property
    def metadata(self) -> Any:
        """What the recipe says it was used with."""
        recipe = self.written()
        return {s.name: s.metadata for s in recipe.stages} if recipe.is_staged else recipe.metadata

    def written(self) -> Recipe:
        if self._recipe is None:
            raise ValueError("Modifiers that are in no recipe cannot be written as one: put them into the recipe.")
        return self._recipe

    def to_string_lines(self, include_metadata: bool = True) -> list[str]:
        """The recipe with every variable evaluated, line by line."""
        recipe = self.written()
        return write_recipe(recipe if include_metadata else _without_metadata(recipe)).splitlines()

    def __str__(self) -> str:
        return "\n".join(self.to_string_lines()) + "\n"

    def save(self, file_path: str | Path, include_metadata: bool = True) -> None:
        """Write the recipe; reading the file gives the same modifiers."""
        path = Path(file_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(self.to_string_lines(include_metadata)) + "\n", encoding="utf-8")


def _without_metadata(recipe: Recipe) -> Recipe:
    stages = tuple(dataclasses.replace(stage, metadata=None) for stage in recipe.stages)
    return dataclasses.replace(recipe, stages=stages, metadata=None)
