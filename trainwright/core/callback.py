"""Callbacks: how anything optional takes part in a run.

The whole loop, with every event in its place (``tests/loop/test_event_order.py`` fires them in this order)::

    Trainer(...)                                   on_init_end
    train():
        on_train_begin
        evaluate, if eval_on_start
        for each epoch:
            on_epoch_begin
            for each optimizer step:
                on_step_begin                      should_log, should_evaluate, should_save = False
                for each micro-batch:
                    forward, backward
                    on_substep_end                 after every micro-batch but the last
                clip the gradients
                on_pre_optimizer_step
                optimizer.step()
                on_optimizer_step
                schedule, zero the gradients, global_step += 1
                on_step_end                        callbacks switch what is due
                if should_log:      log            on_log
                if should_evaluate: evaluate       on_prediction_step (each batch), on_log, on_evaluate
                if should_save:     save           on_save
            on_epoch_end                           then log, evaluate, save again, if switched on
        log the summary                            on_log
        on_train_end
    predict():                                     on_prediction_step (each batch), on_predict
    push_to_hub():                                 on_push_begin
    train() raises instead of ending               on_train_failed
    a recipe puts other parameters into the model  on_parameters_replaced

A callback may return a control (its own or the one it was given) or nothing. Callbacks written for
``transformers`` run unchanged: only the method names matter.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from trainwright.config.arguments import TrainingArguments
from trainwright.config.origin import class_if_imported
from trainwright.config.registry import find
from trainwright.core.state import TrainerControl, TrainerState

logger = logging.getLogger("trainwright")

#: Short, so that every event below stays on one line.
Args = TrainingArguments

EVENTS = (
    "on_init_end",
    "on_train_begin",
    "on_train_end",
    "on_epoch_begin",
    "on_epoch_end",
    "on_step_begin",
    "on_substep_end",
    "on_pre_optimizer_step",
    "on_optimizer_step",
    "on_step_end",
    "on_evaluate",
    "on_predict",
    "on_save",
    "on_log",
    "on_prediction_step",
    "on_push_begin",
    "on_train_failed",
    "on_parameters_replaced",
)


class TrainerCallback:
    """Listens to a run; override the events you care about.

    Every event receives ``args, state, control`` and, by keyword, ``model, processing_class, optimizer,
    lr_scheduler, train_dataloader, eval_dataloader``; ``on_log`` also ``logs``, ``on_evaluate`` and ``on_predict``
    also ``metrics``, ``on_train_failed`` the ``error``, ``on_parameters_replaced`` a dict ``replaced`` of old and new.
    Define ``state()`` (see ``ExportableState``) to be saved in checkpoints. One that stops a training may say why in an
    attribute ``stop_reason``, which is logged and returned.

    >>> class StopAt(TrainerCallback):
    ...     def on_step_end(self, args, state, control, **kwargs):
    ...         control.should_training_stop = state.global_step >= 3
    """

    #: Trackers set this: they hear an event after everyone else, so that they see what others changed in ``logs``.
    listens_last = False
    #: Several of one class are meant, each with settings of its own.
    may_repeat = False
    #: Classes that only show, count and record set this, each for itself: the model need not be brought up to date for
    #: them, where its weights live in another framework.
    _leaves_model_alone = False

    def on_init_end(self, args: Args, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_train_begin(self, args: Args, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_train_end(self, args: Args, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_epoch_begin(self, args: Args, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_epoch_end(self, args: Args, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_step_begin(self, args: Args, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_substep_end(self, args: Args, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_pre_optimizer_step(self, args: Args, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_optimizer_step(self, args: Args, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_step_end(self, args: Args, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_evaluate(self, args: Args, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_predict(self, args: Args, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_save(self, args: Args, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_log(self, args: Args, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_prediction_step(self, args: Args, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_push_begin(self, args: Args, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_train_failed(self, args: Args, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any: ...
    def on_parameters_replaced(
        self, args: Args, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> Any: ...


def listens_to(callback: Any, event: str) -> bool:
    """Whether ``callback`` does anything on ``event``: an inherited empty method is not listening."""
    if event in getattr(callback, "__dict__", {}):
        return True
    for cls in type(callback).__mro__:
        if event in vars(cls):
            # transformers has a base class with the same empty methods.
            return cls not in (TrainerCallback, class_if_imported("transformers.trainer_callback", "TrainerCallback"))
    return callable(getattr(callback, event, None))


def _shown(before: Callable[[], None], listener: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    before()
    return listener(*args, **kwargs)


def _callback_of(listener: Callable[..., Any]) -> Any:
    """The callback whose method ``listener`` is."""
    method = listener.args[1] if isinstance(listener, partial) and listener.func is _shown else listener
    return getattr(method, "__self__", method)


class _Heard(dict[str, list[Callable[..., Any]]]):
    """Event -> listeners, found when first asked for."""

    def __init__(self, handler: CallbackHandler) -> None:
        super().__init__()
        # Weak: a handler that is let go takes what its callbacks refer to along.
        self._handler = weakref.ref(handler)

    def __missing__(self, event: str) -> list[Callable[..., Any]]:
        handler = self._handler()
        assert handler is not None
        self[event] = found = handler.listeners(event)
        return found


#: What events pass on that outlives a run.
_OF_A_TRAINER = ("model", "processing_class", "tokenizer", "optimizer", "lr_scheduler")


def _turn(callback: Any) -> int:
    """Whether a callback hears events before the others, with them, or after them."""
    return bool(getattr(callback, "listens_last", False)) - bool(getattr(callback, "_listens_first", False))


class CallbackHandler:
    """The callbacks of one run, and a table event -> listeners, so that an event nobody hears costs one look-up."""

    def __init__(self, callbacks: Iterable[Any] = (), **references: Any) -> None:
        #: What transformers' list holds too: the flow, the display, trackers, and the user's.
        self.callbacks: list[Any] = []
        #: What belongs to the library itself (``_is_internal``), each with those that were there before it.
        self._internal: list[tuple[Any, list[Any]]] = []
        #: What every event passes on by keyword.
        self.references: dict[str, Any] = {
            "model": None,
            "processing_class": None,
            "tokenizer": None,
            "optimizer": None,
            "lr_scheduler": None,
            "train_dataloader": None,
            "eval_dataloader": None,
            **references,
        }
        #: Bound methods that hear each event, in calling order; looked at in every step.
        self.heard: dict[str, list[Callable[..., Any]]] = _Heard(self)
        self._before_looking: Callable[[], None] | None = None
        #: The callback that has set ``control.should_training_stop``, first of them.
        self.stopped_by: Any = None
        for callback in callbacks:
            self.add_callback(callback)

    def __getattr__(self, name: str) -> Any:
        # HF scripts read `trainer.callback_handler.model`, `.train_dataloader`, ...
        references = self.__dict__.get("references", {})
        if name in references:
            return references[name]
        if name in EVENTS:
            # An evaluate() of one's own calls `callback_handler.on_evaluate(args, state, control, metrics)`.
            return partial(self._call_as_transformers_does, name)
        raise AttributeError(name)

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to a run in this process."""
        kept = {name: value if name in _OF_A_TRAINER else None for name, value in self.references.items()}
        return {**vars(self), "references": kept, "heard": None, "_before_looking": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.heard = _Heard(self)

    def _call_as_transformers_does(
        self,
        event: str,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *values: Any,
        **named: Any,
    ) -> TrainerControl:
        names = {"on_log": ("logs",), "on_evaluate": ("metrics",), "on_predict": ("metrics",)}.get(event, ())
        return self.call_event(event, args, state, control, **dict(zip(names, values, strict=True)), **named)

    def add_callback(self, callback: Any) -> None:
        """Add an instance, or one of a class or registered name."""
        if isinstance(callback, str):
            callback = find("callback", callback, "callbacks")
        added = callback() if isinstance(callback, type) else callback
        may_repeat = getattr(added, "may_repeat", False)
        if not may_repeat and any(type(existing) is type(added) for existing in self.everyone):
            logger.warning("There are now two callbacks of class %s; both will be called.", type(added).__name__)
        if getattr(added, "_is_internal", False):
            self._internal.append((added, self.everyone))
        else:
            self.callbacks.append(added)
            self.callbacks.sort(key=_turn)
        self.heard.clear()

    def pop_callback(self, callback: Any) -> Any:
        """Remove and return the first callback of a class, or the instance; None when there is none."""
        for existing in (*self.callbacks, *(each for each, _ in self._internal)):
            if isinstance(existing, callback) if isinstance(callback, type) else existing == callback:
                if existing in self.callbacks:
                    self.callbacks.remove(existing)
                self._internal = [entry for entry in self._internal if entry[0] is not existing]
                self.heard.clear()
                return existing
        return None

    def remove_callback(self, callback: Any) -> None:
        """Remove the first callback of a class, or the instance, which must be there."""
        if self.pop_callback(callback) is None and not isinstance(callback, type):
            raise ValueError(f"{callback!r} is not in the list of callbacks: {', '.join(self.callback_list.split())}.")

    @property
    def everyone(self) -> list[Any]:
        """All callbacks, the library's own among them, in the order in which they hear events."""
        found = list(self.callbacks)
        for added, before in self._internal:
            places = [place for place, each in enumerate(found) if any(each is earlier for earlier in before)]
            found.insert(places[-1] + 1 if places else 0, added)
        return sorted(found, key=_turn)

    def arrange(self, callbacks: Iterable[Any]) -> None:
        """Take these callbacks, in this order, in place of those there are; what ``listens_last`` still does."""
        self.callbacks = sorted(callbacks, key=_turn)
        self.heard.clear()

    @property
    def callback_list(self) -> str:
        return "\n".join(type(callback).__name__ for callback in self.callbacks)

    def listeners(self, event: str) -> list[Callable[..., Any]]:
        """Bound methods that hear ``event``, in calling order."""
        return [self._listener(callback, event) for callback in self.everyone if listens_to(callback, event)]

    def call_before_looking(self, before: Callable[[], None] | None) -> None:
        """Call ``before`` each time a listener is called that may look at the model."""
        self._before_looking = before
        self.heard.clear()

    def _listener(self, callback: Any, event: str) -> Callable[..., Any]:
        listener = getattr(callback, event)
        # Said by the class itself: one that is derived from it may look.
        if self._before_looking is None or vars(type(callback)).get("_leaves_model_alone", False):
            return listener
        return partial(_shown, self._before_looking, listener)

    def call_event(
        self, event: str, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Call the listeners of ``event``; switches on a control that one returns are copied onto ours."""
        was_asked = control.should_training_stop
        for listener in self.heard[event]:
            answer = listener(args, state, control, **self.references, **kwargs)
            if answer is not None and answer is not control:
                vars(control).update(vars(answer))
            if control.should_training_stop and not was_asked and self.stopped_by is None:
                self.stopped_by = _callback_of(listener)
        if self.stopped_by is not None and not control.should_training_stop:
            # It, or another one, has thought better of it.
            self.stopped_by = None
        return control
