"""Learning rates as a recipe wants them; the run's own schedule then stays constant."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any

from trainwright.config.registry import suggestion
from trainwright.core.modifier import Modifier, Site
from trainwright.recipes.scheduling.groups import chosen_groups, set_in

#: Epochs are fractions of whole steps; what is nearer than this is the same moment.
_SAME_MOMENT = 1e-9
_JUST_BEFORE = 1e-6


class _Rate(Modifier):
    """Writes a rate into parameter groups."""

    sets_learning_rate = True

    def __init__(
        self,
        *,
        start_epoch: float,
        end_epoch: float,
        param_groups: list[int] | None,
        update_frequency: float = -1.0,
    ) -> None:
        super().__init__(start_epoch=start_epoch, end_epoch=end_epoch, update_frequency=update_frequency)
        self.param_groups = param_groups

    def _set(self, site: Site, rate: float) -> None:
        for group in chosen_groups(site, self.param_groups):
            set_in(group, "lr", rate)


class SetLearningRateModifier(_Rate):
    """One rate from ``start_epoch`` on."""

    def __init__(
        self,
        *,
        learning_rate: float,
        param_groups: list[int] | None = None,
        start_epoch: float = -1.0,
        end_epoch: float = -1.0,
        constant_logging: bool = False,
        log_types: object = "__ALL__",
    ) -> None:
        super().__init__(start_epoch=start_epoch, end_epoch=end_epoch, param_groups=param_groups)
        self.learning_rate = _positive("learning_rate", learning_rate)

    def begin(self, site: Site, epoch: float) -> None:
        self._set(site, self.learning_rate)


class LearningRateFunctionModifier(_Rate):
    """From ``init_lr`` to ``final_lr`` between two epochs: linear, cosine, or again and again in cycles.

    ``cyclic_linear`` goes from ``init_lr`` to ``final_lr`` in ``cycle_epochs``, whose last step has ``final_lr``, and
    begins anew; what is left at the end is a shorter cycle.
    """

    FUNCTIONS = ("linear", "cosine", "cyclic_linear")

    def __init__(
        self,
        *,
        lr_func: str,
        init_lr: float,
        final_lr: float,
        start_epoch: float,
        end_epoch: float,
        param_groups: list[int] | None = None,
        cycle_epochs: float = 1.0,
        update_frequency: float = -1.0,
        log_types: object = "__ALL__",
    ) -> None:
        super().__init__(
            start_epoch=start_epoch, end_epoch=end_epoch, param_groups=param_groups, update_frequency=update_frequency
        )
        if lr_func not in self.FUNCTIONS:
            hint = suggestion(lr_func, self.FUNCTIONS)
            raise ValueError(f"lr_func={lr_func!r} is not one of {', '.join(self.FUNCTIONS)}{hint}.")
        if self.end_epoch == -1:
            raise ValueError("end_epoch must say when final_lr is reached; it cannot be -1.")
        self.lr_func = lr_func
        self.init_lr, self.final_lr = _positive("init_lr", init_lr, 0.0), _positive("final_lr", final_lr, 0.0)
        self.cycle_epochs = _positive("cycle_epochs", cycle_epochs)

    def update(self, site: Site, epoch: float) -> None:
        self._set(site, self.rate_at(epoch, site.steps_per_epoch))

    def rate_at(self, epoch: float, steps_per_epoch: float = math.inf) -> float:
        """The rate at ``epoch``."""
        start = max(self.start_epoch, 0.0)
        if self.lr_func == "cyclic_linear":
            share = self._share_of_cycle(epoch - start, self.end_epoch - start, 1 / steps_per_epoch)
        else:
            share = min(1.0, (epoch - start) / (self.end_epoch - start)) if self.end_epoch > start else 1.0
            if self.lr_func == "cosine":
                share = (1 - math.cos(math.pi * share)) / 2
        return self.init_lr + (self.final_lr - self.init_lr) * share

    def _share_of_cycle(self, passed: float, length: float, one_step: float) -> float:
        if passed > length - _SAME_MOMENT:
            return 1.0
        number = math.floor(passed / self.cycle_epochs + _SAME_MOMENT)
        # The last cycle ends where the modifier does.
        cycle = min(self.cycle_epochs, length - number * self.cycle_epochs)
        place = max(passed - number * self.cycle_epochs, 0.0)
        return min(place / (cycle - one_step), 1.0) if cycle > one_step else 0.0


class LearningRateModifier(_Rate):
    """A schedule of torch by its name, its settings in epochs: StepLR, MultiStepLR, ExponentialLR and
    CosineAnnealingWarmRestarts.
    """

    SETTINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # noqa: RUF012 - a table
        "StepLR": (("step_size",), ("gamma",)),
        "MultiStepLR": (("milestones",), ("gamma",)),
        "ExponentialLR": (("gamma",), ()),
        "CosineAnnealingWarmRestarts": (("lr_min", "cycle_epochs"), ()),
    }

    def __init__(
        self,
        *,
        lr_class: str,
        lr_kwargs: dict[str, Any],
        init_lr: float,
        start_epoch: float,
        end_epoch: float = -1.0,
        constant_logging: bool = False,
        update_frequency: float = -1.0,
        param_groups: list[int] | None = None,
        log_types: object = "__ALL__",
    ) -> None:
        super().__init__(
            start_epoch=start_epoch, end_epoch=end_epoch, param_groups=param_groups, update_frequency=update_frequency
        )
        if lr_class not in self.SETTINGS:
            hint = suggestion(lr_class, self.SETTINGS)
            raise ValueError(f"lr_class={lr_class!r} is not one of {', '.join(self.SETTINGS)}{hint}.")
        self.lr_class, self.init_lr = lr_class, _positive("init_lr", init_lr)
        self.settings = self._checked(dict(lr_kwargs or {}))

    def _checked(self, settings: dict[str, Any]) -> dict[str, Any]:
        needed, optional = self.SETTINGS[self.lr_class]
        for name in settings:
            if name not in (*needed, *optional):
                hint = suggestion(name, [*needed, *optional])
                raise ValueError(f"lr_kwargs: {self.lr_class} has no {name!r}{hint}.")
        missing = [name for name in needed if name not in settings]
        if missing:
            raise ValueError(f"lr_kwargs: {self.lr_class} needs {', '.join(missing)}.")
        for name in ("step_size", "cycle_epochs"):
            if name in settings:
                settings[name] = _positive(f"lr_kwargs.{name}", settings[name])
        last = math.inf if self.end_epoch == -1 else self.end_epoch
        for milestone in settings.get("milestones", ()):
            if not max(self.start_epoch, 0.0) < milestone < last:
                raise ValueError(
                    f"lr_kwargs: the milestone {milestone} is not between start_epoch={self.start_epoch} and "
                    f"end_epoch={self.end_epoch}."
                )
        return settings

    def update(self, site: Site, epoch: float) -> None:
        # At its end the rate stays: what would begin there never does.
        last = math.inf if self.end_epoch == -1 else self.end_epoch - _JUST_BEFORE
        self._set(site, self.rate_at(min(epoch, last)))

    def rate_at(self, epoch: float) -> float:
        """The rate at ``epoch``."""
        passed = epoch - max(self.start_epoch, 0.0) + 1e-9
        gamma = self.settings.get("gamma", 0.1)
        if self.lr_class == "StepLR":
            return self.init_lr * gamma ** int(passed // self.settings["step_size"])
        if self.lr_class == "MultiStepLR":
            # Milestones are epochs of the run, not of the modifier.
            return self.init_lr * gamma ** bisect_right(sorted(self.settings["milestones"]), epoch + 1e-9)
        if self.lr_class == "ExponentialLR":
            return self.init_lr * gamma ** int(passed)
        share = (passed % self.settings["cycle_epochs"]) / self.settings["cycle_epochs"]
        lowest = self.settings["lr_min"]
        return lowest + (self.init_lr - lowest) * (1 + math.cos(math.pi * share)) / 2


def _positive(name: str, value: Any, smallest: float | None = None) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r} must be a number.") from None
    if not math.isfinite(number) or (number <= 0 if smallest is None else number < smallest):
        raise ValueError(f"{name}={value!r} must be {'more than 0' if smallest is None else f'{smallest:g} or more'}.")
    return number
