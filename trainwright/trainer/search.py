"""Hyperparameter search: several ``train()`` calls with different arguments, chosen by Optuna."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from trainwright.core.results import BestRun
from trainwright.core.state import TrainerState


class SearchMethods:
    """``hyperparameter_search`` of a Trainer."""

    args: Any
    state: TrainerState
    model_init: Callable[..., nn.Module] | None
    hp_name: Any
    hp_search_backend: Any
    _trial: Any = None
    _objective: Callable[[dict[str, float]], float] | None = None

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """A new model from ``model_init``, which may take the trial."""
        assert self.model_init is not None
        takes_trial = len(inspect.signature(self.model_init).parameters) > 0
        model = self.model_init(trial) if takes_trial else self.model_init()
        if model is None:
            raise ValueError("model_init returned None; it must return the model.")
        return model

    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], float] | None = None,
        n_trials: int = 20,
        direction: str | list[str] = "minimize",
        backend: str | None = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> BestRun:
        """Train ``n_trials`` times with arguments from ``hp_space(trial)`` and return the best.

        ``compute_objective`` turns evaluation metrics into the number to optimise: the loss by default, or the sum of the
        metrics where ``compute_metrics`` gives any. ``kwargs`` go to ``optuna.create_study``.
        """
        if self.model_init is None:
            raise ValueError("hyperparameter_search needs a new model for each trial: pass model_init= to the Trainer.")
        if backend not in (None, "optuna"):
            raise ValueError(f"backend={backend!r} is not supported; the choices are: 'optuna'.")
        optuna = _import_optuna()
        self.hp_name, self.hp_search_backend = hp_name, "optuna"
        self._objective = compute_objective or default_objective
        space = hp_space or default_space
        timeout, jobs = kwargs.pop("timeout", None), kwargs.pop("n_jobs", 1)
        goal = {"directions": direction} if isinstance(direction, list) else {"direction": direction}
        study = optuna.create_study(**goal, **kwargs)
        original = {name: getattr(self.args, name) for name in vars(self.args)}
        try:
            study.optimize(lambda trial: self._run_trial(trial, space), n_trials=n_trials, timeout=timeout, n_jobs=jobs)
        finally:
            vars(self.args).update(original)
            self._trial = self.hp_search_backend = None
        if isinstance(direction, list):
            best = study.best_trials[0]
            return BestRun(str(best.number), best.values, best.params)
        return BestRun(str(study.best_trial.number), study.best_value, study.best_params)

    def _run_trial(self, trial: Any, space: Callable[[Any], dict[str, Any]]) -> Any:
        assert self._objective is not None
        folder = self.args.output_dir
        try:
            chosen = space(trial)
            for name, value in chosen.items():
                if not hasattr(self.args, name):
                    raise ValueError(f"hp_space chose {name!r}, which is not a training argument.")
                setattr(self.args, name, type(getattr(self.args, name))(value) if value is not None else None)
            self.args.output_dir = f"{folder}/{self.hp_name(trial) if self.hp_name else f'run-{trial.number}'}"
            self.train(trial=trial)
            return self._objective(self.evaluate())
        finally:
            self.args.output_dir = folder

    def _start_search_trial(self, trial: Any) -> None:
        self._trial = trial

    def _report_to_search(self, metrics: dict[str, float]) -> None:
        """Let Optuna stop a trial that goes nowhere."""
        if self._trial is None or self._objective is None or not hasattr(self._trial, "should_prune"):
            return
        if len(getattr(self._trial.study, "directions", [0])) > 1:
            return
        self._trial.report(self._objective(dict(metrics)), self.state.global_step)
        if self._trial.should_prune():
            raise _import_optuna().TrialPruned()


def default_space(trial: Any) -> dict[str, Any]:
    """Learning rate, epochs, seed and batch size."""
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-6, 1e-4, log=True),
        "num_train_epochs": trial.suggest_int("num_train_epochs", 1, 5),
        "seed": trial.suggest_int("seed", 1, 40),
        "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [4, 8, 16, 32, 64]),
    }


def default_objective(metrics: dict[str, float]) -> float:
    """The sum of the metrics, or the loss where there are none."""
    rates = ("_runtime", "_per_second", "_mem_")
    own = {k: v for k, v in metrics.items() if k not in ("epoch", "eval_loss") and not any(r in k for r in rates)}
    return sum(own.values()) if own else metrics["eval_loss"]


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ValueError("hyperparameter_search needs the package optuna: pip install optuna") from error
    return optuna
