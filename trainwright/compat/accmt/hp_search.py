"""HyperParameterSearch: the best hyperparameters of Adam or AdamW, found by Optuna."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

from trainwright.compat.accmt.asynchronous.groups import this_group
from trainwright.compat.accmt.hyperparameters import HyperParameters, Scheduler, options_of
from trainwright.compat.accmt.modules import AcceleratorModule
from trainwright.compat.accmt.this_process import ThisProcess
from trainwright.compat.accmt.trainer import Trainer
from trainwright.trainer.seeded_sampler import seeded_sampler

_SEED = 42
_WHOLE = ("epochs", "max_steps")
_SEARCHED = (
    *("train_batch_size", *_WHOLE, "learning_rate"),
    *("beta1", "beta2", "eps", "weight_decay", "warmup_ratio"),
)


class HyperParameterSearch:
    """Trains a new module with every trial's hyperparameters.

    Args:
        get_module_fn: Makes a module.
        train_dataset: What is trained on.
        val_dataset: What is validated on: one, a list, or by name.
        metrics: As of the Trainer.
        trainer_kwargs: Further arguments of the Trainer; nothing is saved.
    """

    def __init__(
        self,
        get_module_fn: Callable[[], AcceleratorModule],
        train_dataset: Any,
        val_dataset: Any,
        metrics: Any = None,
        **trainer_kwargs: Any,
    ) -> None:
        self.get_module_fn, self.metrics = get_module_fn, metrics
        self.train_dataset, self.val_dataset, self.trainer_kwargs = train_dataset, val_dataset, trainer_kwargs
        self.params: dict[str, Any] = {}

    def set_parameters(
        self,
        *,
        train_batch_size: Any = 1,
        epochs: Any = 1,
        max_steps: Any = None,
        learning_rate: Any = (1e-3, 1e-7),
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        eps: Any = 1e-8,
        weight_decay: Any = 0.01,
        scheduler: Any = None,
        warmup_ratio: Any = 0.1,
        step_scheduler_per_epoch: bool = False,
        optimizer: str = "AdamW",
        eval_batch_size: int | None = None,
    ) -> None:
        """What is searched: a value stays, a list ``[a, b]`` is a range, a tuple has the values to choose from.

        Lists of ``train_batch_size`` are values to choose from too; of ``scheduler`` it is a dict by name.
        """
        given = {name: value for name, value in locals().items() if name != "self"}
        if learning_rate == (1e-3, 1e-7):
            # Not given: a range.
            given["learning_rate"] = [1e-7, 1e-3]
        if optimizer not in ("Adam", "AdamW"):
            raise ValueError(f"optimizer={optimizer!r} must be 'Adam' or 'AdamW'.")
        if isinstance(scheduler, (list, tuple)):
            raise ValueError("scheduler must be one, or a dict of several by name.")
        if not any(isinstance(given[name], (list, tuple)) for name in _SEARCHED) and not isinstance(scheduler, dict):
            raise ValueError("Nothing is searched: give at least one parameter as a range, [lowest, highest].")
        for name in _SEARCHED:
            value = given[name]
            if isinstance(value, list) and name != "train_batch_size" and len(value) != 2:
                raise ValueError(
                    f"{name}={value} must be a range, [lowest, highest]; a tuple has values to choose from."
                )
        self.params = given

    def optimize(
        self,
        best_metric_fn: Callable[[dict[str, Any]], float] | None = None,
        direction: str = "minimize",
        n_trials: int = 10,
    ) -> Any:
        """Run the trials, print the best, and return Optuna's study; the same call chooses the same values again.

        ``best_metric_fn`` gets the last evaluation's values by validation set, and returns the one that counts; by
        default that is the validation loss.
        """
        try:
            import optuna
        except ImportError as error:
            raise ImportError("HyperParameterSearch needs the package optuna: pip install optuna") from error

        direction = direction.lower()
        if not self.params:
            raise ValueError("Call set_parameters() before optimize().")
        if direction not in ("minimize", "maximize"):
            raise ValueError(f"direction={direction!r} must be 'minimize' or 'maximize'.")
        if ThisProcess().use_distributed:
            raise ValueError(
                "HyperParameterSearch is for one process, as the others would try other values; with several use "
                "trainwright.Trainer.hyperparameter_search."
            )
        if this_group() is not None:
            raise ValueError("HyperParameterSearch looks at evaluations after each trial: use launch, not alaunch.")
        # Seeded, so that the same search chooses the same values again.
        sampler = seeded_sampler(lambda seed: optuna.samplers.TPESampler(seed=seed), _SEED)
        study = optuna.create_study(direction=direction, sampler=sampler, study_name="Hyper Parameter Search")
        study.optimize(lambda trial: self._score(trial, best_metric_fn or _validation_loss), n_trials=n_trials)
        if not any(trial.value is not None for trial in study.trials):
            raise ValueError(
                f"None of {n_trials} trials gave a number: each value was NaN. Search lower learning rates, or look at "
                "one trial with Trainer.fit."
            )
        print(f"Best value: {study.best_value}", "Best parameters:", sep="\n")
        for name, value in study.best_params.items():
            print(f"  {name}: {value}")
        return study

    def get_hps(self, trial: Any) -> HyperParameters:
        """The hyperparameters of one trial."""
        chosen = {name: _suggested(trial, name, value) for name, value in self.params.items()}
        schedule = chosen["scheduler"]
        if isinstance(schedule, dict):
            schedule = schedule[trial.suggest_categorical("scheduler", list(schedule))]
        sizes = [chosen["train_batch_size"], chosen["eval_batch_size"] or chosen["train_batch_size"]]
        known = getattr(Scheduler, schedule, None) if isinstance(schedule, str) else schedule
        warms_up = known is not None and "warmup_ratio" in options_of(known)
        return HyperParameters(
            epochs=chosen["epochs"],
            max_steps=chosen["max_steps"],
            batch_size=sizes,
            optimizer=chosen["optimizer"],
            optim_kwargs={
                "lr": chosen["learning_rate"],
                "betas": (chosen["beta1"], chosen["beta2"]),
                "eps": chosen["eps"],
                "weight_decay": chosen["weight_decay"],
            },
            scheduler=schedule,
            scheduler_kwargs={"warmup_ratio": chosen["warmup_ratio"]} if warms_up else None,
            step_scheduler_per_epoch=chosen["step_scheduler_per_epoch"],
        )

    def _score(self, trial: Any, best_metric_fn: Callable[[dict[str, Any]], float]) -> float:
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(
                self.get_hps(trial),
                model_path=f"{folder}/model",
                metrics=self.metrics,
                enable_checkpointing=False,
                disable_model_saving=True,
                **self.trainer_kwargs,
            )
            trainer.fit(self.get_module_fn(), self.train_dataset, self.val_dataset)
        return float(best_metric_fn(trainer.state.additional_metrics))


def _suggested(trial: Any, name: str, value: Any) -> Any:
    if name not in _SEARCHED or not isinstance(value, (list, tuple)):
        return value
    if isinstance(value, tuple) or name == "train_batch_size":
        return trial.suggest_categorical(name, list(value))
    low, high = sorted(value)
    return trial.suggest_int(name, low, high) if name in _WHOLE else trial.suggest_float(name, low, high)


def _validation_loss(found: dict[str, Any]) -> float:
    """The mean over validation sets."""
    losses = [values["valid_loss"] for values in found.values()]
    return sum(losses) / len(losses)
