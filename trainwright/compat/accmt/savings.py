"""``model_saving``: which models are kept, by what, and where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from trainwright.compat.accmt.metrics import Metric
from trainwright.compat.accmt.settings import Settings
from trainwright.config.registry import suggestion
from trainwright.training.keep_best import TRAIN_LOSS, KeepBest

_FIXED = ("best_valid_loss", "best_train_loss", "always")
_GRAMMAR = "'best_valid_loss', 'best_train_loss', 'always', 'best_<metric>' (of a Metric), a list of these, or None"


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


def keepers(
    settings: Settings,
    *,
    metrics: dict[Any, list[Metric]],
    sets: list[str] | None,
    validates: bool,
    notes: Callable[[], dict[str, Any]],
    model: Callable[[], nn.Module],
) -> list[KeepBest]:
    """One callback for each mode; without validation, validation loss means training loss."""
    modes = [] if settings.later.disable_model_saving else saving_modes(settings.model_saving)
    if not validates:
        modes = list(dict.fromkeys("best_train_loss" if mode == "best_valid_loss" else mode for mode in modes))
    patience = settings.later.patience
    unknown = set(patience) - set(modes) if isinstance(patience, dict) else set()
    if unknown:
        raise ValueError(f"patience names {sorted(unknown)}, and model_saving is {modes}.")
    if patience is not None and not modes:
        raise ValueError("patience counts model savings without a better one: it needs model_saving.")
    steps = settings.evaluate_every_n_steps
    rhythm = "1 epoch" if steps is None else f"{steps} steps"
    found = []
    for mode in modes:
        names, greater = _judged(mode, metrics, sets, validates)
        found.append(
            KeepBest(
                names,
                settings.model_folder / mode
                if isinstance(settings.model_saving, (list, tuple))
                else settings.model_folder,
                greater_is_better=greater,
                below=settings.model_saving_below,
                above=settings.above,
                every=None if validates else rhythm,
                patience=patience.get(mode) if isinstance(patience, dict) else patience if names else None,
                safe_serialization=settings.safe_serialization,
                max_shard_size=settings.max_shard_size,
                notes=notes,
                model=model,
            )
        )
    return found


def _judged(
    mode: str, metrics: dict[Any, list[Metric]], sets: list[str] | None, validates: bool
) -> tuple[list[str] | str | None, bool]:
    """Native names of what ``mode`` judges (their mean, where there are several), and whether more is better."""
    if mode == "always":
        return None, False
    name, *chosen = mode.removeprefix("best_").split("@")
    if name == "train_loss":
        return TRAIN_LOSS, False
    wanted = [str(each) for each in chosen]
    unknown = [each for each in wanted if each not in (sets or [])]
    if unknown:
        raise ValueError(
            f"model_saving={mode!r}: there is no validation set {unknown[0]!r}; there are {sets or 'none'}."
        )
    if name == "valid_loss":
        return _names("loss", wanted, sets, {None}), False
    known = [(key, metric) for key, group in metrics.items() for metric in group]
    matching = [(key, metric) for key, metric in known if metric.main_metric == name]
    if not validates or not matching:
        names = sorted({metric.main_metric for _, metric in known})
        why = f"metrics has {names or 'none'}" if validates else "there is no validation set"
        raise ValueError(f"model_saving={mode!r} needs a Metric whose main value is {name!r}, and {why}.")
    return _names(name, wanted, sets, {key for key, _ in matching}), matching[0][1].greater_is_better


def _names(metric: str, wanted: list[str], sets: list[str] | None, keys: set[Any]) -> list[str]:
    if sets is None:
        return [f"eval_{metric}"]
    having = sets if None in keys else [key for key in sets if key in {str(each) for each in keys}]
    return [f"eval_{key}_{metric}" for key in (wanted or having)]
