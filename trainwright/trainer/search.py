"""Hyperparameter search: several ``train()`` calls with different arguments, chosen by Optuna."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainwright.config.arguments import TrainingArguments
from trainwright.core.backend import Backend
from trainwright.core.errors import GivenUp
from trainwright.core.results import BestRun
from trainwright.trainer.seeded_sampler import seeded_sampler

Objective = Callable[[dict[str, float]], Any]
Space = Callable[[Any], dict[str, Any]]


class Search:
    """One trial's link to Optuna: what to optimise, and whether to go on."""

    def __init__(self, trial: Any, objective: Objective, backend: Backend, *, may_prune: bool) -> None:
        self.trial = trial
        self.objective = objective
        self._backend, self._may_prune = backend, may_prune

    def report(self, metrics: dict[str, float], step: int) -> None:
        """Let Optuna stop a trial that goes nowhere; it cannot with several objectives."""
        if not self._may_prune:
            return
        is_hopeless = False
        if self._backend.rank == 0:
            self.trial.report(self.objective(dict(metrics)), step)
            is_hopeless = self.trial.should_prune()
        if self._backend.gather(is_hopeless)[0]:
            raise GivenUp


def let_search_watch(trainer: Any, search: Any) -> None:
    """Let ``search`` hear of each evaluation of a training that is about to begin, and end it."""
    trainer._setup.search = search


def search_hyperparameters(
    trainer: Any,
    space: Space,
    objective: Objective,
    n_trials: int,
    direction: str | list[str],
    options: dict[str, Any],
) -> BestRun:
    """Run the trials on ``trainer``, whose arguments are put back afterwards; ``options`` go to ``create_study``.

    Of several processes the first asks Optuna, and the others train with what it was told.
    """
    backend = trainer.engine.backend
    if backend.world_size > 1 and options.get("n_jobs", 1) != 1:
        raise ValueError("n_jobs runs trials at the same time in one process; leave it out with several processes.")
    original = dict(vars(trainer.args))
    try:
        if backend.rank > 0:
            return _follow(trainer, objective)
        best = _lead(trainer, space, objective, n_trials, direction, options)
        backend.gather(best)
        return best
    finally:
        vars(trainer.args).update(original)
        trainer.create_accelerator_and_postprocess()


@dataclass
class Chosen:
    """What the first process tells the others of a trial."""

    arguments: dict[str, Any]
    number: int
    parameters: dict[str, Any]
    may_prune: bool


def _lead(
    trainer: Any, space: Space, objective: Objective, n_trials: int, direction: Any, options: dict[str, Any]
) -> BestRun:
    optuna = _import_optuna()
    timeout, jobs = options.pop("timeout", None), options.pop("n_jobs", 1)
    several = isinstance(direction, list)
    seed = trainer.args.seed
    # As Optuna would choose, and again alike.
    options.setdefault("sampler", seeded_sampler(lambda number: optuna.samplers.TPESampler(seed=number), seed))
    study = optuna.create_study(**({"directions": direction} if several else {"direction": direction}), **options)

    def run(trial: Any) -> Any:
        chosen = Chosen(space(trial), trial.number, dict(trial.params), may_prune=not several)
        _refuse_unknown(trainer.args, chosen.arguments)
        trainer.engine.backend.gather(chosen)
        try:
            return run_trial(trainer, trial, chosen, objective)
        except GivenUp:
            raise optuna.TrialPruned from None

    study.optimize(run, n_trials=n_trials, timeout=timeout, n_jobs=jobs)
    if not any(trial.values is not None for trial in study.trials):
        raise ValueError("No trial came to a number: each one's value was NaN, or it was given up. Search elsewhere.")
    best = study.best_trials[0] if several else study.best_trial
    return BestRun(str(best.number), best.values if several else best.value, best.params)


def _follow(trainer: Any, objective: Objective) -> BestRun:
    optuna = _import_optuna()
    while isinstance(told := trainer.engine.backend.gather(None)[0], Chosen):
        try:
            run_trial(trainer, optuna.trial.FixedTrial(told.parameters, told.number), told, objective)
        except GivenUp:
            continue
    return told


def run_trial(trainer: Any, trial: Any, chosen: Chosen, objective: Objective) -> Any:
    """Train and evaluate once with the arguments that were chosen."""
    args, folder = trainer.args, trainer.args.output_dir
    try:
        for name, value in chosen.arguments.items():
            now = getattr(args, name)
            setattr(args, name, value if now is None or value is None else type(now)(value))
        args.output_dir = f"{folder}/{trainer.hp_name(trial) if trainer.hp_name else f'run-{trial.number}'}"
        # Precision, clipping and accumulation may be among what was chosen.
        trainer.create_accelerator_and_postprocess()
        trainer._setup.search = Search(trial, objective, trainer.engine.backend, may_prune=chosen.may_prune)
        trainer.train(trial=trial)
        return objective(trainer.evaluate())
    finally:
        trainer._setup.search = None
        args.output_dir = folder


def _refuse_unknown(args: TrainingArguments, chosen: dict[str, Any]) -> None:
    for name in chosen:
        if not hasattr(args, name):
            raise ValueError(f"hp_space chose {name!r}, which is not a training argument.")


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
