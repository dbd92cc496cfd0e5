"""The group that trains: in place of an evaluation it hands its weights over, and logs what comes back."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from trainwright.compat.accmt.asynchronous.following import PAUSE
from trainwright.compat.accmt.asynchronous.groups import Group
from trainwright.compat.accmt.asynchronous.measuring import OF_TRAINING, Measuring
from trainwright.compat.accmt.asynchronous.queue import MOST_WAITING, Entry, EvaluationQueue, Result, RunNotes
from trainwright.core.callback import TrainerCallback
from trainwright.core.errors import StopRequested
from trainwright.core.state import ExportableState, TrainerControl, TrainerState

logger = logging.getLogger("trainwright")

#: Seconds between two looks for results in the midst of training.
_LOOK_EVERY = 1.0


class HandingOver(TrainerCallback, ExportableState):
    """Hands weights to the evaluating group and logs its results, each at the step it belongs to.

    One process writes the log and tells trackers, whoever has evaluated. Where the evaluating group is gone, what
    waits is evaluated here.
    """

    def __init__(self, tools: Measuring, queue: EvaluationQueue, group: Group, *, keeps_results: bool = True) -> None:
        self._tools, self._queue, self._group, self._keeps_results = tools, queue, group, keeps_results
        #: Results up to this step are in the log.
        self.reported = -1
        self._looked = 0.0
        self._has_said_that_it_waits = self._is_alone = False

    # ---- events

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step == 0:
            self.reported = -1
        self._is_alone = False
        if self._is_first:
            self._queue.begin(state.global_step)
        # Nobody looks before it is as this training leaves it.
        self._agreed(None)
        done = self._queue.steps_with_results()
        if done:
            # Logged as soon as there is a log; models are judged from here.
            self._tools.adopt(self._queue.result(done[-1]).carried)
        if self._is_first:
            carried = self._tools.carried()
            notes = RunNotes(id=uuid.uuid4().hex, launch=self._group.launch, seed=int(args.seed), carried=carried)
            self._queue.open(notes)

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        now = time.monotonic()
        if self._is_first and now - self._looked > _LOOK_EVERY:
            self._looked = now
            self._report()

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        answer = self._agreed(self._wait_until_fewer_than(1) if self._is_first else None)
        if answer == "stop":
            raise StopRequested("a signal, while evaluations were still waiting")
        if answer == "gone":
            self._evaluate_here()
            self._tools.native.engine.rest_weights()
        self._report_together()
        if self._is_first:
            self._queue.close(keeps_results=self._keeps_results)

    def on_train_failed(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if not self._is_first:
            return
        self._queue.fail()
        waiting = self._queue.waiting()
        if waiting:
            logger.warning(
                "%d evaluations wait in %s: the evaluating processes do them if they can, or a run that is resumed.",
                len(waiting),
                self._queue.folder,
            )

    # ---- evaluations

    def evaluate(self) -> None:
        """What stands in place of an evaluation: the weights go to the others; all processes call it."""
        native = self._tools.native
        self._report_together()
        answer = self._agreed(self._wait_until_fewer_than(MOST_WAITING) if self._is_first else None)
        total, count = native.callback_handler.references["losses"].sums()
        # The weights that would be evaluated; the loop goes back to training by itself.
        native.engine.eval_mode(native.adapter)
        if self._is_first and not self._queue.knows(native.state.global_step):
            self._queue.add(self._entry(total, count), on_host(native.adapter))
        if answer == "gone":
            self._evaluate_here()

    def _entry(self, total: float, count: int) -> Entry:
        state, keeper = self._tools.native.state, self._tools.keeper
        return Entry(
            step=state.global_step,
            epoch=float(state.epoch or 0.0),
            max_steps=state.max_steps,
            num_train_epochs=int(state.num_train_epochs),
            status={name: keeper.status[name] for name in OF_TRAINING},
            is_epoch_end=keeper.is_epoch_end,
            is_last_step=keeper.is_last_step,
            losses=[float(total), count],
        )

    def _wait_until_fewer_than(self, most: int) -> str:
        """ "room", or "gone" where nobody evaluates any more, or "stop" where this training is asked to stop."""
        while True:
            self._report()
            # Before the look: whoever is gone leaves what waits now.
            is_gone = self._group.other_has_ended()
            waiting = len(self._queue.waiting())
            if self._group.is_asked_to_stop():
                return "stop"
            if is_gone:
                self._say_that_it_is_alone(waiting)
                return "gone"
            if waiting < most:
                return "room"
            if most > 1 and not self._has_said_that_it_waits:
                self._has_said_that_it_waits = True
                logger.warning(
                    "%d evaluations wait: the training waits for them. Evaluate less often, on fewer samples, or in "
                    "more processes.",
                    waiting,
                )
            time.sleep(PAUSE)

    def _say_that_it_is_alone(self, waiting: int) -> None:
        if not self._is_alone:
            self._is_alone = True
            logger.warning(
                "The evaluating processes are gone: the processes that train evaluate from now on, first what waits "
                "(%d).",
                waiting,
            )

    def _evaluate_here(self) -> None:
        """Do what waits, and put the weights back; all processes call it."""
        native, queue = self._tools.native, self._queue
        steps = self._agreed([step for step in queue.waiting() if step > self.reported])
        if not steps:
            return
        native.engine.train_mode()
        own = on_host(native.adapter)
        try:
            for step in steps:
                entry, weights = queue.take(step)
                result = self._tools.measure(entry, weights)
                self._agreed(None)
                if self._is_first:
                    queue.done(result)
        finally:
            native.engine.train_mode()
            native.adapter.load_state_dict(own)
        self._report_together()

    # ---- results

    def _report_together(self) -> None:
        """Every process knows what the first one has logged."""
        if self._is_first:
            self._report()
        until = self._agreed(self.reported)
        if not self._is_first:
            self._report(until)

    def _report(self, until: int | None = None) -> None:
        for step in self._queue.steps_with_results():
            if self.reported < step and (until is None or step <= until):
                self._log(self._queue.result(step))
                self.reported = step

    def _log(self, result: Result) -> None:
        native = self._tools.native
        with _at(native.state, native.control, result):
            for log in result.logs:
                native.log(dict(log))
        self._tools.adopt(result.carried)

    # ---- the processes that train

    @property
    def _is_first(self) -> bool:
        return self._tools.native.state.is_world_process_zero

    def _agreed(self, value: Any) -> Any:
        """What the first process says; all call it."""
        return self._tools.native.engine.backend.gather(value)[0]

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"reported": self.reported}}


@contextmanager
def _at(state: TrainerState, control: TrainerControl, result: Result) -> Iterator[None]:
    """The log says where the training stood when the weights were handed over."""
    before, should_log = (state.global_step, state.epoch), control.should_log
    state.global_step, state.epoch = result.step, result.epoch
    try:
        yield
    finally:
        (state.global_step, state.epoch), control.should_log = before, should_log


def on_host(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the weights in main memory."""
    found: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"Asynchronous evaluation hands over tensors, and {name} of the model's state is a "
                f"{type(value).__name__}: use launch."
            )
        found[name] = value.detach().to("cpu", copy=True).contiguous()
    return found
