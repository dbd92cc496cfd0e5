"""Feeds trackers from the events of a run."""

from __future__ import annotations

import logging
from typing import Any

from trainwright.callbacks.environment import environment_facts
from trainwright.core.callback import TrainerCallback
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.core.tracker import Tracker

logger = logging.getLogger("trainwright")


class TrackerCallback(TrainerCallback):
    """Tells each tracker what is logged; a tracker that fails is named once and left alone, the run goes on."""

    listens_last = True

    def __init__(self, trackers: list[Tracker]) -> None:
        self.trackers = trackers
        self._started = False

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        facts = environment_facts(kwargs.get("model"), kwargs.get("train_dataloader"))
        for tracker in self.trackers:
            # A missing package is a mistake of the user's and stops the run before its first step.
            tracker.start(args.to_sanitized_dict(), facts)
        self._started = True

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._started:
            self._tell_each("log", kwargs["logs"], state.global_step)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._started:
            self._tell_each("finish", "done")
        self._started = False

    def on_train_failed(self) -> None:
        """Called when training raises: trackers learn that the run did not end well."""
        if self._started:
            self._tell_each("finish", "failed")
        self._started = False

    def _tell_each(self, verb: str, *values: Any) -> None:
        for tracker in list(self.trackers):
            try:
                getattr(tracker, verb)(*values)
            except Exception:
                logger.exception("%s failed and is switched off; training goes on.", type(tracker).__name__)
                self.trackers.remove(tracker)
