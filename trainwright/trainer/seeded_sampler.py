"""Choices of a search that repeat: also after a kill, and also where some of a trial's values were chosen before it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any


def seeded_sampler(make: Callable[[int], Any], seed: int) -> Any:
    """An Optuna sampler that draws each value from ``seed``, the trial's number and the setting's name alone.

    Optuna's own samplers draw one number after the other, so that a search that is started again draws others.
    ``make`` makes one of them from a seed.

    >>> import optuna
    >>> sampler = seeded_sampler(lambda seed: optuna.samplers.RandomSampler(seed=seed), 7)
    >>> [optuna.create_study(sampler=sampler).ask().suggest_int("width", 1, 100) for _ in range(2)]
    [87, 87]
    """
    import optuna

    class SeededSampler(optuna.samplers.BaseSampler):
        """A new sampler for every question."""

        def __init__(self) -> None:
            self._of_trial: tuple[int, Any] = (-1, None)

        def _for(self, number: int) -> Any:
            if self._of_trial[0] != number:
                self._of_trial = (number, make(_mixed(seed, number, "")))
            return self._of_trial[1]

        def before_trial(self, study: Any, trial: Any) -> None:
            # Also for one that is taken up again.
            self._of_trial = (-1, None)
            self._for(trial.number).before_trial(study, trial)

        def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
            return self._for(trial.number).infer_relative_search_space(study, trial)

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Any:
            return self._for(trial.number).sample_relative(study, trial, search_space)

        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
            sampler = make(_mixed(seed, trial.number, param_name))
            return sampler.sample_independent(study, trial, param_name, param_distribution)

        def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
            self._for(trial.number).after_trial(study, trial, state, values)

    return SeededSampler()


def _mixed(seed: int, number: int, name: str) -> int:
    mixed = hashlib.sha256(f"{seed} {number} {name}".encode()).digest()
    return int.from_bytes(mixed[:4], "little")
