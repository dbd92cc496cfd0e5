"""Feeds trackers from the events of a run."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainwright.callbacks.delivery import Delivery, finish_all
from trainwright.callbacks.environment import environment_facts
from trainwright.config.arguments import TrainingArguments
from trainwright.config.fields import AllFields, ours
from trainwright.config.run_directory import run_directory
from trainwright.config.secrets import redacted, redacted_values
from trainwright.core.callback import TrainerCallback
from trainwright.core.errors import GivenUp, Preempted
from trainwright.core.events import RunEvents
from trainwright.core.files import replace_text
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.core.tracker import TrackedRun, Tracker, scalars

logger = logging.getLogger("trainwright")

IDS = "trackers.json"


class TrackerCallback(TrainerCallback):
    """Tells each tracker what is logged; one that fails is named once and tried again, and the run goes on.

    ``names`` are for messages and for ``trackers.json``, which keeps the ids under which services know the run.
    """

    _leaves_model_alone = True

    listens_last = True

    def __init__(self, trackers: Sequence[Tracker], names: Sequence[str] | None = None) -> None:
        self.trackers = list(trackers)
        self._names = _distinct(names or [type(tracker).__name__ for tracker in trackers])
        self._deliveries: list[Delivery] = []
        self._run: TrackedRun | None = None
        self._status = "done"
        self._lock = threading.Lock()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        facts = environment_facts(kwargs.get("model"), kwargs.get("train_dataloader"))
        self._run = TrackedRun(
            folder=run_directory(args),
            config=args.to_sanitized_dict(),
            facts=facts,
            name=redacted(args.run_name) if args.run_name else None,
            project=project_of(args),
            tags=tuple(redacted(str(tag)) for tag in ours(args).tags or ()),
            step=state.global_step,
        )
        if not state.global_step:
            self._forget_ids()
        self._open()

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.tell("log", scalars(kwargs["logs"]), state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        events: RunEvents | None = kwargs.get("events")
        self._close("failed" if events is not None and events.unsaved else "done", state.global_step)

    def on_train_failed(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Trackers learn that the run did not end well."""
        self._close("stopped" if isinstance(kwargs["error"], (KeyboardInterrupt, Preempted, GivenUp)) else "failed")

    def tell(self, verb: str, *values: object) -> None:
        """Call a method of every tracker; after a training its run is opened again for it."""
        if self._deliveries:
            for delivery in self._deliveries:
                delivery.put(verb, *values)
        elif self._run is not None:
            self._open()
            for delivery in self._deliveries:
                delivery.put(verb, *values)
            self._close(self._status)

    def offer(self, verb: str, *values: object) -> None:
        """The same for those trackers that have such a method; nothing is said of the others."""
        for delivery in self._deliveries:
            if callable(getattr(delivery.tracker, verb, None)):
                delivery.put(verb, *values)

    # ---- opening and closing

    def _open(self) -> None:
        assert self._run is not None
        earlier = self._ids() if self._run.step else {}
        for name, tracker in zip(self._names, self.trackers, strict=True):
            delivery = Delivery(name, tracker, lambda known, name=name: self._keep_id(name, known))
            # Kept before it starts: where one of several is wrong, the others are told that the run failed.
            self._deliveries.append(delivery)
            delivery.start(dataclasses.replace(self._run, earlier_id=earlier.get(name)))

    def _close(self, status: str, step: int | None = None) -> None:
        deliveries, self._deliveries, self._status = self._deliveries, [], status
        finish_all(deliveries, status)
        if self._run is not None and step:
            self._run = dataclasses.replace(self._run, step=step)

    # ---- ids

    def _file(self) -> Path:
        assert self._run is not None
        return self._run.folder / IDS

    def _ids(self) -> dict[str, str]:
        try:
            found = json.loads(self._file().read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}

    def _forget_ids(self) -> None:
        """A new run in the same folder is another run to the services."""
        try:
            self._file().unlink(missing_ok=True)
        except OSError as error:
            logger.debug("%s could not be removed: %s", IDS, error)

    def _keep_id(self, name: str, known: str | None) -> None:
        if known is None:
            return
        with self._lock:
            content = json.dumps(redacted_values({**self._ids(), name: known}, certain=True), indent=2)
            try:
                self._file().parent.mkdir(parents=True, exist_ok=True)
                replace_text(self._file(), content + "\n")
            except OSError as error:
                logger.warning(
                    "%s could not be written (%s): a resumed run will be a new one there.", IDS, error.strerror
                )


def project_of(args: TrainingArguments) -> str:
    """``project``, where it was set: transformers' default names transformers' maker."""
    project, default = args.project, AllFields.__dataclass_fields__["project"].default
    return "trainwright" if project is None or project == default else redacted(project)


def _distinct(names: Sequence[str]) -> list[str]:
    """Two trackers of a kind as ``name`` and ``name-2``."""
    found: list[str] = []
    for name in names:
        count = sum(earlier == name or earlier.startswith(f"{name}-") for earlier in found)
        found.append(f"{name}-{count + 1}" if count else name)
    return found
