"""Callback: what users hear of a training, and how they come to hear it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from trainwright.core.callback import TrainerCallback
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.engines.torch.memory import is_out_of_memory

logger = logging.getLogger("trainwright")


class Callback:
    """Override the events that matter; ``self.module``, ``self.trainer`` and ``self.state`` are there once fit begins.

    In an ``ExtendedAcceleratorModule`` the events around backward and the optimizer are those of its own calls, which
    it makes itself: they are not told.
    """

    module: Any = None
    trainer: Any = None
    state: Any = None

    def on_fit_start(self) -> None: ...
    def on_fit_end(self) -> None: ...
    def on_epoch_start(self) -> None: ...
    def on_epoch_end(self) -> None: ...
    def on_before_training_step(self, batch: object) -> None: ...
    def on_after_training_step(self) -> None: ...
    def on_before_validation_step(self, batch: object) -> None: ...
    def on_after_validation_step(self) -> None: ...
    def on_before_backward(self, loss: Any) -> None: ...
    def on_after_backward(self) -> None: ...
    def on_before_optimizer_step(self, optimizer: Any) -> None: ...
    def on_after_optimizer_step(self, optimizer: Any) -> None: ...
    def on_before_scheduler_step(self, scheduler: Any) -> None: ...
    def on_after_scheduler_step(self, scheduler: Any) -> None: ...
    def on_before_zero_grad(self, optimizer: Any) -> None: ...
    def on_after_zero_grad(self, optimizer: Any) -> None: ...
    def on_evaluation_start(self) -> None: ...
    def on_evaluation_end(self) -> None: ...
    def on_save_checkpoint(self) -> None: ...
    def on_resume(self) -> None: ...
    def on_runtime_error(self, exception: BaseException) -> None: ...
    def on_cuda_out_of_memory(self, exception: BaseException) -> None: ...
    def on_keyboard_interrupt(self, exception: BaseException) -> None: ...
    def on_exception(self, exception: BaseException) -> None: ...


MOMENTS = tuple(name for name in vars(Callback) if name.startswith("on_"))


class CallbackEvents:
    """Tells callbacks of events; one that nobody hears costs a look-up."""

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self.callbacks = list(callbacks)
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                raise ValueError(f"callbacks: {callback!r} is no Callback of trainwright.compat.accmt.")
        self._listeners = {
            name: [getattr(each, name) for each in self.callbacks if _is_own(each, name)] for name in MOMENTS
        }

    def hears(self, name: str) -> bool:
        return bool(self._listeners[name])

    def tell(self, name: str, *values: object) -> None:
        for listener in self._listeners[name]:
            listener(*values)

    def introduce(self, module: Any, trainer: object, state: object) -> None:
        """Tell callbacks whom they listen to."""
        for callback in self.callbacks:
            callback.module, callback.trainer, callback.state = module, trainer, state


def _is_own(callback: Callback, name: str) -> bool:
    return name in vars(callback) or getattr(type(callback), name) is not getattr(Callback, name)


class EventsBridge(TrainerCallback):
    """Hears the events of a native training and tells them as ACCMT's events."""

    #: They may change weights: a checkpoint is copied before they are called.
    runs_users_code = True

    def __init__(self, events: CallbackEvents) -> None:
        self._events = events
        self._hooks: list[Any] = []

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step:
            self._events.tell("on_resume")
        self._events.tell("on_fit_start")
        self._listen_to(kwargs.get("optimizer"), kwargs.get("lr_scheduler"))

    def _listen_to(self, optimizer: Any, scheduler: Any) -> None:
        """The optimizer itself tells when it steps: the schedule moves right after."""
        self._forget()
        for inner in getattr(optimizer, "optimizers", [optimizer]):
            if hasattr(inner, "register_step_pre_hook"):
                self._hooks.append(inner.register_step_pre_hook(self._before_step))
                self._hooks.append(inner.register_step_post_hook(lambda *given: self._after_step(given[0], scheduler)))

    def _before_step(self, optimizer: Any, *given: object) -> None:
        self._events.tell("on_before_optimizer_step", optimizer)

    def _after_step(self, optimizer: Any, scheduler: Any) -> None:
        self._events.tell("on_after_optimizer_step", optimizer)
        if scheduler is not None:
            self._events.tell("on_before_scheduler_step", scheduler)

    def on_optimizer_step(self, args: object, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        if kwargs.get("lr_scheduler") is not None:
            self._events.tell("on_after_scheduler_step", kwargs["lr_scheduler"])
        self._events.tell("on_before_zero_grad", kwargs.get("optimizer"))

    def on_step_end(self, args: object, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        self._events.tell("on_after_zero_grad", kwargs.get("optimizer"))

    def on_epoch_begin(self, args: object, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self._events.tell("on_epoch_start")

    def on_epoch_end(self, args: object, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self._events.tell("on_epoch_end")

    def on_save(self, args: object, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self._events.tell("on_save_checkpoint")

    def on_train_end(self, args: object, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self._forget()
        self._events.tell("on_fit_end")

    def on_train_failed(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._forget()
        self._events.tell(_moment_of(kwargs["error"]), kwargs["error"])

    def _forget(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def _moment_of(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "on_keyboard_interrupt"
    if isinstance(error, Exception) and is_out_of_memory(error):
        return "on_cuda_out_of_memory"
    return "on_runtime_error" if isinstance(error, RuntimeError) else "on_exception"
