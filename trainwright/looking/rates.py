"""``trainer.lr_find()``: train a copy with a learning rate that grows, and see at which the loss falls fastest."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainwright.config.origin import class_if_imported
from trainwright.core.callback import TrainerCallback
from trainwright.engines.torch.targets import unwrap
from trainwright.looking.found_rates import LearningRates
from trainwright.proving.copies import copied, let_go_afterwards, nothing_said, random_numbers_put_back
from trainwright.proving.prove import flags_put_back
from trainwright.training.course import sets_rates_by_recipe
from trainwright.training.setup import Setup, require_model

#: Weight of the losses before in the mean that is judged.
_SMOOTHING = 0.9
#: A smoothed loss so many times the least one is the end.
_DIVERGED = 4.0
#: Steps before anybody is judged.
_FIRST = 10

#: A loss that falls by fewer times its noise falls by chance.
_CHANCE = 1.5

#: A copy that trains alone, with nothing that sets rates but us.
_SETTINGS: dict[str, Any] = {
    "acceleration": "off",
    "fast_dev_run": None,
    "lr_scheduler_kwargs": None,
    "lr_scheduler_type": "constant",
    "torch_compile": False,
    "torch_compile_backend": None,
    "torch_compile_mode": None,
    "warmup_steps": 0,
}


class _Growing(TrainerCallback):
    """Sets the rate of each step, and ends the training once the loss has grown too far."""

    def __init__(self, setup: Setup, rates: np.ndarray) -> None:
        self._copy, self._rates = setup, rates
        self._shares: list[float] = []
        self.losses: list[float] = []
        self.smoothed: list[float] = []
        self.has_diverged = False
        self._mean = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        groups = self._copy.optimizer.param_groups
        if not self._shares:
            first = [float(group.get("initial_lr", group["lr"])) for group in groups]
            self._shares = [rate / max(first) for rate in first] if max(first) > 0 else [1.0] * len(first)
        for group, share in zip(groups, self._shares, strict=True):
            group["lr"] = float(self._rates[state.global_step]) * share
        self._copy.engine.reread()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        loss = (logs or {}).get("loss")
        if loss is None or len(self.losses) >= state.global_step:
            return
        self.losses.append(float(loss))
        if not math.isfinite(loss):
            self.has_diverged = control.should_training_stop = True
            return
        self._mean = _SMOOTHING * self._mean + (1 - _SMOOTHING) * loss
        self.smoothed.append(self._mean / (1 - _SMOOTHING ** len(self.losses)))
        least = min(self.smoothed)
        if len(self.losses) > _FIRST and self.smoothed[-1] - least > (_DIVERGED - 1) * max(abs(least), 1e-8):
            self.has_diverged = control.should_training_stop = True


def lr_find(source: Setup, least: float, greatest: float, steps: int) -> LearningRates:
    """Rates, losses, and a suggestion; see ``Trainer.lr_find``."""
    _refuse(source, least, greatest, steps)
    rates = np.geomspace(least, greatest, steps)
    settings = {**_SETTINGS, "max_steps": steps, "learning_rate": least}
    with (
        tempfile.TemporaryDirectory(prefix="trainwright-lr-find-") as folder,
        random_numbers_put_back(),
        nothing_said(),
        flags_put_back(),
        let_go_afterwards(source),
    ):
        try:
            copy = copied(source, settings, folder)
        except ValueError as error:
            raise ValueError(str(error).replace("prove trains copies", "lr_find trains a copy")) from error
        growing = _Growing(copy.setup, rates)
        copy.setup.callbacks.add_callback(growing)
        _refuse_without_rates(copy)
        copy.trainer.train()
    return _judged(rates, growing)


def _judged(rates: np.ndarray, growing: _Growing) -> LearningRates:
    smoothed = np.asarray(growing.smoothed)
    count = len(smoothed)
    # Where it grows again it does not scatter: it diverges.
    falling = max(int(np.argmin(smoothed)) + 1, _FIRST) if count else 0
    return LearningRates(
        rates=[float(rate) for rate in rates[: len(growing.losses)]],
        losses=growing.losses,
        smoothed=[float(loss) for loss in smoothed],
        suggestion=suggested(rates[:count], smoothed, noise_of(growing.losses[:falling])),
        has_diverged=growing.has_diverged,
    )


def noise_of(losses: Sequence[float]) -> float:
    """How far losses of neighbouring steps lie apart by chance: the spread of a single one, whatever the trend.

    >>> noise_of([3.0, 2.0, 1.0, 0.0]) < noise_of([3.0, 1.0, 2.0, 0.0])
    True
    """
    bends = np.diff(np.asarray(losses, dtype=np.float64), 2)
    # Of three numbers, weighted 1, -2, 1.
    return float(np.sqrt(np.mean(bends**2) / 6)) if len(bends) else 0.0


def suggested(rates: np.ndarray, smoothed: np.ndarray, noise: float = 0.0) -> float | None:
    """The rate at which the loss falls fastest, before it is least; None where it falls no more than by chance.

    >>> rates = np.geomspace(1e-5, 1, 101)
    >>> falls = 2 - 1 / (1 + (3e-3 / rates) ** 2) + 40 * rates**2
    >>> bool(1e-3 < suggested(rates, falls) < 9e-3)
    True
    """
    if len(smoothed) <= _FIRST // 2 + 3:
        return None
    start = min(_FIRST // 2, len(smoothed) // 10)
    end = start + int(np.argmin(smoothed[start:])) + 1
    if end - start < 3 or smoothed[end - 1] >= smoothed[start] - _CHANCE * noise:
        return None
    # Over a few rates: from one to the next, chance decides.
    width = min(max(len(smoothed) // 30, 1), (end - start - 1) // 2)
    falls = smoothed[start + 2 * width : end] - smoothed[start : end - 2 * width]
    return float(f"{rates[start + width + int(np.argmin(falls))]:.2g}")


def _refuse(source: Setup, least: float, greatest: float, steps: int) -> None:
    require_model(source)
    if not 0 < least < greatest or not math.isfinite(greatest):
        raise ValueError(f"lr_find tries rates from {least} to {greatest}: give two numbers, 0 < least < greatest.")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 20:
        raise ValueError(f"steps={steps!r} must be a whole number of at least 20: fewer rates say nothing.")
    if source.run is not None:
        raise ValueError("This Trainer is training: look for a learning rate before or after.")
    args = source.args
    if args.engine != "torch":
        raise ValueError(f"lr_find trains with engine='torch', and this Trainer has engine={args.engine!r}.")
    if source.backend.world_size > 1:
        raise ValueError("lr_find trains a copy in one process: start it without torchrun; the rate is the same.")
    if args.deepspeed or args.fsdp or args.tensor_parallel_size > 1:
        raise ValueError(
            "lr_find trains a copy of the whole model in one process, and deepspeed, fsdp or tensor_parallel_size "
            "spreads it: look for the rate without them, on a smaller model of the same kind if need be."
        )
    model: Any = unwrap(source.model)
    quantized = getattr(model, "is_quantized", False) or getattr(model, "is_loaded_in_4bit", False)
    if quantized or isinstance(model, class_if_imported("torch.jit", "ScriptModule")):
        raise ValueError(
            f"lr_find trains a copy of the model, and {type(model).__name__} is "
            f"{'quantized' if quantized else 'a script'}, which cannot be copied: look for the rate without that."
        )
    if source.module is not None and not source.module.automatic_optimization:
        raise ValueError("lr_find sets the rate of each step, and this Module steps its optimizers by hand.")
    if sets_rates_by_recipe(source):
        raise ValueError("lr_find sets the rate of each step, and so does the recipe: take its schedule out of it.")
    if source.hooks().train_dataset is None and source.module is None:
        raise ValueError("lr_find needs data to train on: pass train_dataset= to the Trainer.")


def _refuse_without_rates(copy: Any) -> None:
    """Some optimizers have no rate that could be set; asked before a step is taken."""
    if copy.setup.optimizer is None:
        return
    for group in copy.setup.optimizer.param_groups:
        if not isinstance(group.get("lr"), (int, float)):
            raise ValueError(f"{type(copy.setup.optimizer).__name__} finds its own rate: lr_find has nothing to set.")
