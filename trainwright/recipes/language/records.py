"""What a recipe says, once it is read: stages of modifiers with their arguments, nothing left to evaluate."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from trainwright.config.errors import ConfigError
from trainwright.config.registry import check_name
from trainwright.recipes.language.expressions import is_expression
from trainwright.recipes.language.plain import numbered, plain, scalars_in

RunType = Literal["train", "oneshot"]

METADATA = "__metadata__"
#: Keys beside variables, groups and stages.
RESERVED = frozenset({"version", METADATA, "run_type", "args", "stages"})

#: Compress a language model once, after its training: another library's business.
_ELSEWHERE = frozenset(
    {
        "GPTQModifier",
        "LogarithmicEqualizationModifier",
        "SmoothQuantModifier",
        "SparseGPTModifier",
        "WandaPruningModifier",
    }
)


@dataclass(frozen=True)
class ModifierSpec:
    """One modifier: what kind, with which arguments.

    >>> ModifierSpec("EpochRangeModifier", {"start_epoch": 0.0, "end_epoch": 3.0}).end_epoch
    3.0
    >>> ModifierSpec("EpochRangModifier")
    Traceback (most recent call last):
    trainwright.config.errors.ConfigError: recipe: there is no modifier 'EpochRangModifier' (did you mean ...
    """

    kind: str
    arguments: dict[str, Any] = field(default_factory=dict)
    #: The key in the recipe that it stands under.
    group: str = "modifiers"
    #: ``file:line``, for messages.
    where: str = field(default="recipe", compare=False)

    def __post_init__(self) -> None:
        refuse_unknown_kind(self.kind, self.where)
        if "modifiers" not in self.group:
            raise ConfigError(f"{self.where}: the group {self.group!r} must have 'modifiers' in its name.")
        plain(self.group, self.where)
        arguments = numbered(plain(self.arguments, self.where), self.where)
        for value in scalars_in(arguments):
            if isinstance(value, str) and is_expression(value):
                raise ConfigError(f"{self.where}: {value!r} was not evaluated.")
        # Its own copy: what a modifier does with its arguments changes no recipe.
        object.__setattr__(self, "arguments", arguments)

    @property
    def start_epoch(self) -> float | None:
        """When it begins; None: at once, or as soon as its own default says."""
        return _epoch(self.arguments.get("start_epoch"))

    @property
    def end_epoch(self) -> float | None:
        """When it ends; None: never."""
        return _epoch(self.arguments.get("end_epoch"))


@dataclass(frozen=True)
class Stage:
    """Modifiers that belong together; the one stage of a plain recipe has no name."""

    name: str | None
    modifiers: tuple[ModifierSpec, ...] = ()
    #: "oneshot" stages change a model without training it.
    run_type: RunType | None = None
    metadata: dict[str, Any] | None = None
    #: What the variables of this stage came to.
    variables: dict[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        where = f"stage {self.name}" if self.name else "recipe"
        if self.name is not None and (not self.name or "modifiers" in self.name or self.name in RESERVED):
            raise ConfigError(f"{self.name!r} cannot be the name of a stage: choose another one.")
        if self.run_type not in ("train", "oneshot", None):
            raise ConfigError(f"{where}: run_type is {self.run_type!r}: write train or oneshot.")
        plain(self.name, where)
        if self.metadata is not None:
            object.__setattr__(self, "metadata", plain(self.metadata, where))
        # A group is one key of the file: what belongs to it stands together.
        order = {spec.group: index for index, spec in reversed(list(enumerate(self.modifiers)))}
        object.__setattr__(self, "modifiers", tuple(sorted(self.modifiers, key=lambda spec: order[spec.group])))


@dataclass(frozen=True)
class Recipe:
    """What happens to a model while it is trained; :func:`~trainwright.recipes.language.reading.read_recipe` makes it.

    >>> recipe = Recipe((Stage(None, (ModifierSpec("EpochRangeModifier", {"start_epoch": 0, "end_epoch": 2.5}),)),))
    >>> recipe.max_epochs, recipe.is_staged
    (3.0, False)
    """

    stages: tuple[Stage, ...]
    version: str | None = None
    #: Where there are several stages, each has its own instead.
    metadata: dict[str, Any] | None = None
    #: What it was read from, for messages.
    source: str = field(default="recipe", compare=False)
    #: What the variables at the root came to.
    variables: dict[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        if not names or (None in names and len(names) > 1):
            raise ConfigError(f"{self.source}: a recipe is one stage without a name, or stages with names.")
        if len(set(names)) != len(names):
            raise ConfigError(f"{self.source}: two stages have the same name: {', '.join(map(str, names))}.")
        if self.version is not None:
            object.__setattr__(self, "version", str(plain(self.version, self.source)))
        self._check_metadata()

    def _check_metadata(self) -> None:
        described = [stage.name for stage in self.stages if stage.metadata is not None]
        if not self.is_staged and described:
            raise ConfigError(f"{self.source}: the metadata of a recipe without stages belongs to the recipe.")
        if self.is_staged and self.metadata is not None:
            raise ConfigError(f"{self.source}: in a recipe of stages each stage has its own {METADATA}.")
        if described and len(described) != len(self.stages):
            missing = ", ".join(str(stage.name) for stage in self.stages if stage.metadata is None)
            raise ConfigError(f"{self.source}: either all stages have {METADATA} or none; there is none in {missing}.")
        if self.metadata is not None:
            object.__setattr__(self, "metadata", plain(self.metadata, self.source))

    @property
    def is_staged(self) -> bool:
        """Whether the stages have names."""
        return self.stages[0].name is not None

    @property
    def modifiers(self) -> tuple[ModifierSpec, ...]:
        """Those of all stages, one stage after the other."""
        return tuple(spec for stage in self.stages for spec in stage.modifiers)

    @property
    def min_epochs(self) -> float:
        """The whole epoch in which the first modifier begins; 0 where none says."""
        return _first(self.modifiers) or 0.0

    @property
    def max_epochs(self) -> float:
        """Whole epochs until the last modifier has ended, or begun where it never ends; 0 where none says."""
        return _last(self.modifiers) or 0.0

    def stage_epochs(self) -> dict[str, tuple[float, float]]:
        """When each stage begins and ends; ``"all"`` is a recipe without stages.

        A stage that does not say begins where the one before ends, and ends where the next begins; the last may have
        no end, which is -1.

        >>> from trainwright.recipes.language.reading import read_recipe
        >>> read_recipe({
        ...     "first": {"modifiers": [{"EpochRangeModifier": {"start_epoch": -1, "end_epoch": 2}}]},
        ...     "second": {"modifiers": [{"SetWeightDecayModifier": {"weight_decay": 0.0}}]},
        ... }).stage_epochs()
        {'first': (0.0, 2.0), 'second': (2.0, -1.0)}
        """
        if not self.is_staged:
            return {"all": (self.min_epochs, self.max_epochs)}
        starts = [_first(stage.modifiers) for stage in self.stages]
        ends = [_last(stage.modifiers) for stage in self.stages]
        found: dict[str, tuple[float, float]] = {}
        before = 0.0
        for index, stage in enumerate(self.stages):
            start, end = starts[index], ends[index]
            start = before if start is None else start
            if end is None:
                later = [other for other in starts[index + 1 : index + 2] if other is not None]
                end = later[0] if later else (start if index + 1 < len(self.stages) else -1.0)
            found[str(stage.name)] = (start, end)
            before = max(end, start)
        return found


def refuse_unknown_kind(kind: str, where: str) -> None:
    """An error unless there is such a modifier."""
    if kind in _ELSEWHERE:
        raise ConfigError(
            f"{where}: {kind} compresses a language model after its training, which llm-compressor does: this library "
            "changes models while they are trained."
        )
    check_name("modifier", kind, where)


def _epoch(value: object) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and value > -1 else None


def _first(modifiers: Iterable[ModifierSpec]) -> float | None:
    starts = [spec.start_epoch for spec in modifiers if spec.start_epoch is not None]
    return float(math.floor(min(starts))) if starts else None


def _last(modifiers: Iterable[ModifierSpec]) -> float | None:
    moments = [moment for spec in modifiers for moment in (spec.start_epoch, spec.end_epoch) if moment is not None]
    return float(math.ceil(max(moments))) if moments else None
