"""Signals that come where no training runs: a word about it, a note for the scheduler, and the exit code of a stop."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from trainwright.checkpoint.directory import list_checkpoints
from trainwright.checkpoint.run_lock import is_anothers
from trainwright.config.arguments import TrainingArguments
from trainwright.config.fields import ours
from trainwright.core.events import RunEvents
from trainwright.core.marker import mark_preempted
from trainwright.core.stops import LeavesAtOnce

logger = logging.getLogger("trainwright")

Method = TypeVar("Method", bound=Callable[..., Any])


def leaves_at_once(doing: str, *, marks: bool = False) -> Callable[[Method], Method]:
    """Let a signal end a method of the Trainer at once, with a line that says that it was ``doing`` something.

    ``marks``: what it does leads to a training, which waits from then on to be started again (``preempted.json``).
    Inside a training the training itself answers signals, and decides when that is over.
    """

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def answered(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            if trainer.is_in_train:
                return method(trainer, *args, **kwargs)
            given = getattr(trainer, "args", None) or _arguments_among(args, kwargs)
            setup = trainer._setup
            before = setup.answering
            setup.answering = LeavesAtOnce(
                lambda reason: _say(given, reason, doing, marks=marks),
                code=75 if given is None else ours(given).preempted_exit_code,
                handle_signals=given is None or ours(given).handle_signals,
            )
            try:
                return setup.answering.do(lambda: method(trainer, *args, **kwargs))
            finally:
                setup.answering = before

        return cast(Method, answered)

    return decorate


def _arguments_among(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a constructor was given as its arguments."""
    return next((value for value in (kwargs.get("args"), *args) if hasattr(value, "output_dir")), None)


def _say(args: TrainingArguments, reason: str, doing: str, *, marks: bool) -> None:
    text = f"Stopped by {reason} while {doing}: nothing was done yet that could be lost"
    folder = None if args is None or args.output_dir is None else Path(args.output_dir)
    if folder is None or not args.should_save or is_anothers(folder):
        # Where another process trains, the folder's record is about that training.
        logger.warning("%s.", text)
        return
    found = list_checkpoints(folder)
    last = found[-1].name if found else None
    text += f"; {last} is as it was." if last else "."
    RunEvents(folder).record("stopped", text, checkpoint=last)
    if marks:
        mark_preempted(folder, reason=reason, step=0, checkpoint=last, code=ours(args).preempted_exit_code)
