"""What ``ScheduledModifierManager.modify`` returns: an optimizer, or a GradScaler, that steps with the recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trainwright.config.warnings import warn
from trainwright.recipes.manual_loop import ManualLoop
from trainwright.recipes.scheduling.groups import chosen_groups, set_in

if TYPE_CHECKING:
    from trainwright.compat.sparseml.manager import ScheduledModifierManager

#: What the objects below keep themselves; a learning-rate schedule puts its own ``step`` over theirs.
_OWN = ("_drive", "_wrapped", "_optimizer", "_manager", "_rates", "_has_warned", "step", "_opt_called")


class _Stepping:
    """Steps with a recipe, and is for the rest what it stands around."""

    _drive: ManualLoop
    _wrapped: Any
    _optimizer: Any
    _manager: ScheduledModifierManager
    #: Parameter groups whose learning rate the recipe has set, and to what.
    _rates: tuple[tuple[dict[str, Any], float], ...] = ()
    _has_warned = False

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._wrapped, name, value)

    def _step(self, update: Callable[[], Any]) -> Any:
        if not self._manager.enabled:
            return update()
        self._put_rates_back()
        answer = self._drive.step(update)
        self._note_rates()
        self._manager.send_logs(self._drive)
        return answer

    def emulated_step(self) -> None:
        """Count a step that is not made: for epochs of different lengths."""
        self._drive.start()
        self._drive.steps += 1
        for modifier in self._drive.modifiers:
            modifier.advance(self._drive.site, self._drive.epoch)
        self._note_rates()

    def _note_rates(self) -> None:
        setters = self._manager.rate_setters()
        groups = [g for m in setters for g in chosen_groups(self._drive.site, getattr(m, "param_groups", None))]
        self._rates = tuple((group, float(group["lr"])) for group in groups)

    def _put_rates_back(self) -> None:
        """A schedule that the loop steps, too, must not be what decides."""
        for group, rate in self._rates:
            if float(group["lr"]) == rate:
                continue
            set_in(group, "lr", rate)
            if not self._has_warned:
                self._has_warned = True
                warn(
                    "The loop changes the learning rate that the recipe sets: the recipe's acts. Leave the schedule "
                    "out, or the recipe's learning-rate modifiers."
                )

    def loss_update(self, loss: Tensor, student_outputs: Any = None, student_inputs: Any = None) -> Tensor:
        """The loss as the modifiers want it, before ``backward``."""
        return self._manager.loss_update(loss, student_outputs=student_outputs, student_inputs=student_inputs)

    @property
    def logs(self) -> dict[str, float]:
        """What modifiers have to say, by name."""
        return self._drive.site.logs

    @property
    def wrapped(self) -> Any:
        """What this stands around."""
        return self._wrapped

    @property
    def wrapped_manager(self) -> ScheduledModifierManager:
        """The manager that made this."""
        return self._manager

    @property
    def wrapped_optimizer(self) -> Any:
        """The optimizer itself."""
        return self._optimizer

    @property
    def wrapped_module(self) -> nn.Module:
        """The model in training."""
        return self._drive.site.model

    @property
    def wrapped_steps_per_epoch(self) -> float:
        """Steps in one of the recipe's epochs."""
        return self._drive.site.steps_per_epoch

    @property
    def wrapped_epoch(self) -> float:
        """Where the loop stands."""
        return self._drive.epoch

    @property
    def wrapped_steps(self) -> int:
        """The same in steps."""
        return self._drive.steps


class ModifiedOptimizer(_Stepping, torch.optim.Optimizer):
    """An optimizer with a recipe; schedules, GradScalers and checkpoints take it as they would take the other."""

    def __init__(self, drive: ManualLoop, optimizer: Any, manager: ScheduledModifierManager) -> None:
        # Not Optimizer's own: groups and state stay where they are.
        self._drive, self._wrapped, self._optimizer, self._manager = drive, optimizer, optimizer, manager

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        """The groups of the optimizer itself."""
        return self._wrapped.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """Its memory."""
        return self._wrapped.state

    @property
    def defaults(self) -> Any:  # type: ignore[override]
        """Its settings."""
        return self._wrapped.defaults

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        """One step, with what the recipe does before and after it."""
        return self._step(lambda: self._wrapped.step() if closure is None else self._wrapped.step(closure))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the optimizer does it."""
        self._wrapped.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """That of the optimizer; the manager has its own."""
        return self._wrapped.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into the optimizer."""
        self._wrapped.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """To the optimizer."""
        self._wrapped.add_param_group(param_group)

    def __repr__(self) -> str:
        return f"ModifiedOptimizer({self._wrapped!r})"


class ModifiedScaler(_Stepping):
    """A GradScaler (or anything else with ``step(optimizer)``) with a recipe."""

    def __init__(self, drive: ManualLoop, scaler: object, optimizer: Any, manager: ScheduledModifierManager) -> None:
        self._drive, self._wrapped, self._optimizer, self._manager = drive, scaler, optimizer, manager
        found = getattr(scaler, "_found_inf_per_device", None)
        if callable(found):
            drive.site.was_bad = lambda: any(bool(value) for value in found(optimizer).values())

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """One step; gradients are unscaled first, for the recipe looks at them."""
        if args and args[0] is not self._optimizer:
            # One that the recipe is not about.
            return self._wrapped.step(*args, **kwargs)
        unscale = getattr(self._wrapped, "unscale_", None)
        if callable(unscale) and self._manager.enabled:
            try:
                unscale(self._optimizer)
            except RuntimeError as error:
                if "already been called" not in str(error):
                    raise
        return self._step(lambda: self._wrapped.step(*args, **kwargs))
