"""Hyperparameter search: several ``train()`` calls with different arguments, chosen by Optuna."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainwright.core.results import BestRun

Objective = Callable[[dict[str, float]], Any]
Space = Callable[[Any], dict[str, Any]]


class Search:
    """One trial's link to Optuna: what to optimise, and whether to go on."""

    def __init__(self, trial: Any, objective: Objective) -> None:
        self.trial = trial
        self.objective = objective

    def report(self, metrics: dict[str, float], step: int) -> None:
        """Let Optuna stop a trial that goes nowhere; it cannot with several objectives."""
        if len(self.trial.study.directions) > 1:
            return
        self.trial.report(self.objective(dict(metrics)), step)
        if self.trial.should_prune():
            raise _import_optuna().TrialPruned()


def search_hyperparameters(
    trainer: Any,
    space: Space,
    objective: Objective,
    n_trials: int,
    direction: str | list[str],
    options: dict[str, Any],
) -> BestRun:
    """Run the trials on ``trainer``, whose arguments are put back afterwards; ``options`` go to ``create_study``."""
    optuna = _import_optuna()
    timeout, jobs = options.pop("timeout", None), options.pop("n_jobs", 1)
    goal = {"directions": direction} if isinstance(direction, list) else {"direction": direction}
    study = optuna.create_study(**goal, **options)
    original = dict(vars(trainer.args))
    try:
        study.optimize(
            lambda trial: run_trial(trainer, trial, space, objective), n_trials=n_trials, timeout=timeout, n_jobs=jobs
        )
    finally:
        vars(trainer.args).update(original)
        trainer.create_accelerator_and_postprocess()
    best = study.best_trials[0] if isinstance(direction, list) else study.best_trial
    return BestRun(str(best.number), best.values if isinstance(direction, list) else best.value, best.params)


def run_trial(trainer: Any, trial: Any, space: Space, objective: Objective) -> Any:
    """Train and evaluate once with what ``space`` chose."""
    args, folder = trainer.args, trainer.args.output_dir
    try:
        for name, value in space(trial).items():
            if not hasattr(args, name):
                raise ValueError(f"hp_space chose {name!r}, which is not a training argument.")
            now = getattr(args, name)
            setattr(args, name, value if now is None or value is None else type(now)(value))
        args.output_dir = f"{folder}/{trainer.hp_name(trial) if trainer.hp_name else f'run-{trial.number}'}"
        # Precision, clipping and accumulation may be among what was chosen.
        trainer.create_accelerator_and_postprocess()
        trainer._search = Search(trial, objective)
        trainer.train(trial=trial)
        return objective(trainer.evaluate())
    finally:
        trainer._search = None
        args.output_dir = folder


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
