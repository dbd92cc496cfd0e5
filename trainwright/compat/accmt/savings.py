"""``model_saving`` and ``register_model_saving``: which models are kept, by what, and where."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from trainwright.compat.accmt.metrics import Metric
from trainwright.compat.accmt.settings import Settings
from trainwright.compat.accmt.status import ONLY_SET
from trainwright.config.registry import suggestion
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.training.keep_best import TRAIN_LOSS, KeepBest

_FIXED = ("best_valid_loss", "best_train_loss", "always")
_GRAMMAR = (
    "'best_valid_loss', 'best_train_loss', 'always', 'best_<metric>' (of a Metric), 'best_<metric>@<validation set>', "
    "several of these with / between them, a list, or None"
)


@dataclass(frozen=True)
class Saving:
    """One way of saving, and the bounds between which it saves."""

    mode: str
    below: float | None = None
    above: float | None = None
    #: Registered ones have a folder each, as several in a list have.
    own_folder: bool = True

    @property
    def folder_name(self) -> str:
        return self.mode.replace("/", "__")


def saving_modes(model_saving: object) -> list[str]:
    """``model_saving`` as a list.

    >>> saving_modes("best_valid_loss"), saving_modes(None)
    (['best_valid_loss'], [])
    """
    if model_saving is None:
        return []
    given = list(model_saving) if isinstance(model_saving, (list, tuple)) else [model_saving]
    for mode in given:
        if not isinstance(mode, str) or not (mode.lower() == "always" or mode.lower().startswith("best_")):
            raise ValueError(
                f"model_saving={mode!r} must be {_GRAMMAR}{suggestion(mode, ['best_valid_loss', 'always'])}."
            )
    return list(dict.fromkeys(mode.lower() if mode.lower() in _FIXED else mode for mode in given))


def registered_saving(mode: object, below: float | None, above: float | None) -> Saving:
    """What ``register_model_saving`` was given; ``best_`` may be left out.

    >>> registered_saving("accuracy@0/valid_loss", None, 0.2).folder_name
    'best_accuracy@0__valid_loss'
    """
    if not isinstance(mode, str) or not mode:
        raise ValueError(f"register_model_saving: {mode!r} must be {_GRAMMAR}.")
    for name, value in (("saving_below", below), ("saving_above", above)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise ValueError(f"{name}={value!r} must be a number, or None.")
    (known,) = saving_modes(mode if mode.startswith("best_") or mode == "always" else f"best_{mode}")
    return Saving(known, below, above)


def savings_of(settings: Settings, registered: Sequence[Saving], validates: bool) -> list[Saving]:
    """All ways of saving; those that were registered stand in place of ``model_saving`` where it is the usual one."""
    usual = settings.model_saving == "best_valid_loss" and bool(registered)
    several = isinstance(settings.model_saving, (list, tuple)) or bool(registered)
    modes = [] if usual else saving_modes(settings.model_saving)
    given = [Saving(mode, settings.model_saving_below, settings.above, several) for mode in modes]
    found = {saving.mode: saving for saving in (*given, *registered)}
    if not validates and "best_valid_loss" in found:
        # Without validation, validation loss means training loss.
        saving = found.pop("best_valid_loss")
        known = Saving("best_train_loss", saving.below, saving.above, saving.own_folder)
        found.setdefault("best_train_loss", known)
    return list(found.values())


class Kept(KeepBest):
    """One way of saving among others.

    Of several criteria all must improve at once. Patience is lost where all ways have lost it. Without ``saves`` only
    patience is counted.
    """

    #: What the user calls it.
    shown_as = "model_saving"

    def __init__(self, mode: str, criteria: Sequence[Criterion], *, saves: bool, **options: Any) -> None:
        names = [name for criterion in criteria for name in criterion.names]
        greater = bool(criteria) and criteria[0].greater_is_better
        super().__init__(tuple(dict.fromkeys(names)) or None, greater_is_better=greater, **options)
        self.mode, self._criteria, self._saves = mode, list(criteria), saves
        #: All ways of saving of the run, this one too.
        self.company: list[Kept] = [self]
        self.bests: list[float | None] = [None] * len(criteria)

    @property
    def patience_left(self) -> int:
        """-1 without patience."""
        return -1 if self.patience is None else max(self.patience - self.times_worse, 0)

    @property
    def has_lost_patience(self) -> bool:
        return self.patience is not None and all(one.patience_left <= 0 for one in self.company if one.patience)

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step == 0:
            self.bests = [None] * len(self._criteria)
        super().on_train_begin(args, state, control, **kwargs)

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # The evaluation before the first step is for comparison: nothing has been trained that could be kept.
        if state.global_step > 0:
            super().on_evaluate(args, state, control, **kwargs)

    def _judge(self, value: float, state: TrainerState, control: TrainerControl, kwargs: dict[str, Any]) -> None:
        if len(self._criteria) == 1:
            super()._judge(value, state, control, kwargs)
            return
        better = []
        for place, criterion in enumerate(self._criteria):
            mean = sum(self._found[name] for name in criterion.names) / len(criterion.names)
            # As if it were alone; each remembers its own best.
            better.append(self._is_new_best(mean, self.bests[place], criterion.greater_is_better))
            if better[-1]:
                self.bests[place] = mean
        self.times_worse = 0 if all(better) else self.times_worse + 1
        if all(better):
            self._keep(state, kwargs, self.bests[0])
        if self.has_lost_patience:
            control.should_training_stop = True

    def _keep(self, state: TrainerState, kwargs: dict[str, Any], value: float | None) -> None:
        if self._saves:
            super()._keep(state, kwargs, value)
        else:
            self.best = value

    def _values(self) -> list[float]:
        return super()._values() if len(self._criteria) < 2 else [value for value in self.bests if value is not None]

    def _directions(self) -> list[bool]:
        return [criterion.greater_is_better for criterion in self._criteria]

    @property
    def identity(self) -> dict[str, Any]:
        return {"mode": self.mode, **super().identity}

    def state(self) -> dict[str, Any]:
        found = super().state()
        return {**found, "attributes": {**found["attributes"], "bests": list(self.bests)}}


@dataclass(frozen=True)
class Criterion:
    """Native names whose mean is judged, and whether more is better."""

    names: tuple[str, ...]
    greater_is_better: bool


def keepers(
    settings: Settings,
    registered: Sequence[Saving],
    *,
    metrics: dict[Any, list[Metric]],
    sets: list[str] | None,
    validates: bool,
    notes: Callable[[], dict[str, Any]],
    model: Callable[[], nn.Module],
) -> list[Kept]:
    """One callback for each way of saving; with ``disable_model_saving`` they only count patience, if there is any."""
    saves, patience = not settings.later.disable_model_saving, settings.later.patience
    savings = savings_of(settings, registered, validates) if saves or patience is not None else []
    modes = [saving.mode for saving in savings]
    unknown = set(patience) - set(modes) if isinstance(patience, Mapping) else set()
    if unknown:
        raise ValueError(f"patience names {sorted(unknown)}, and model_saving is {modes}.")
    if patience is not None and not modes:
        raise ValueError("patience counts model savings without a better one: it needs model_saving.")
    steps = settings.evaluate_every_n_steps
    rhythm = "1 epoch" if steps is None else f"{steps} steps"
    found: list[Kept] = []
    for saving in savings:
        criteria = _criteria(saving.mode, metrics, sets, validates)
        of_this = patience.get(saving.mode) if isinstance(patience, Mapping) else patience
        found.append(
            Kept(
                saving.mode,
                criteria,
                saves=saves,
                folder=_folder(settings, saving),
                below=saving.below,
                above=saving.above,
                every=None if validates else rhythm,
                patience=of_this if criteria else None,
                safe_serialization=settings.safe_serialization,
                max_shard_size=settings.max_shard_size,
                notes=notes,
                model=model,
            )
        )
    for one in found:
        one.company = found
    return found


def _folder(settings: Settings, saving: Saving) -> Path:
    return settings.model_folder / saving.folder_name if saving.own_folder else settings.model_folder


def _criteria(mode: str, metrics: dict[Any, list[Metric]], sets: list[str] | None, validates: bool) -> list[Criterion]:
    """What ``mode`` judges; nothing for "always"."""
    if mode == "always":
        return []
    parts = mode.removeprefix("best_").split("/")
    if len(parts) > 1 and any(part.startswith("train_loss") for part in parts):
        raise ValueError(f"model_saving={mode!r}: the training loss is judged alone; register it by itself.")
    return [_criterion(part, mode, metrics, sets, validates) for part in parts]


def _criterion(
    part: str, mode: str, metrics: dict[Any, list[Metric]], sets: list[str] | None, validates: bool
) -> Criterion:
    name, *wanted = part.split("@")
    if name == "train_loss":
        return Criterion((TRAIN_LOSS,), False)
    known_sets = [ONLY_SET] if sets is None else sets
    unknown = [each for each in wanted if each not in known_sets]
    if unknown:
        raise ValueError(
            f"model_saving={mode!r}: there is no validation set {unknown[0]!r}; there are "
            f"{known_sets if validates else 'none'}."
        )
    if name == "valid_loss":
        return Criterion(_names("loss", wanted, sets, {None}), False)
    known = [(key, metric) for key, group in metrics.items() for metric in group]
    matching = [(key, metric) for key, metric in known if metric.main_metric == name]
    if not validates or not matching:
        names = sorted({metric.main_metric for _, metric in known})
        why = f"metrics has {names or 'none'}" if validates else "there is no validation set"
        raise ValueError(f"model_saving={mode!r} needs a Metric whose main value is {name!r}, and {why}.")
    keys = {key for key, _ in matching}
    return Criterion(_names(name, wanted, sets, keys), matching[0][1].greater_is_better)


def _names(metric: str, wanted: list[str], sets: list[str] | None, keys: set[Any]) -> tuple[str, ...]:
    if sets is None:
        return (f"eval_{metric}",)
    having = sets if None in keys else [key for key in sets if key in {str(each) for each in keys}]
    return tuple(f"eval_{key}_{metric}" for key in (wanted or having))
