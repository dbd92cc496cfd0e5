"""A run is a plain record; functions in ``loop`` act on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from trainwright.core.callback import CallbackHandler
from trainwright.core.engine import Engine
from trainwright.core.microbatching import MicroBatching
from trainwright.core.state import TrainerControl, TrainerState


class Feed(Protocol):
    """Training batches in a known order, grouped by optimizer step."""

    #: Epoch to run next.
    epoch: int

    def groups(self) -> Iterator[list[Any]]:
        """The remaining optimizer steps of the current epoch, each as its list of micro-batches."""
        ...

    #: Batches of the current epoch given out so far, those before a resume included.
    consumed: int

    def close_epoch(self) -> None:
        """The current epoch is done: a checkpoint saved from now on continues with the next."""
        ...

    def announce_end(self) -> None:
        """Callbacks are being told that the epoch ends, complete or not."""
        ...

    def epoch_progress(self) -> float:
        """Epochs consumed so far, with the fraction of the current one."""
        ...

    def on_last_group(self) -> bool:
        """Whether the group just given is known to be the epoch's last."""
        ...

    def position(self, before_last_group: bool = False) -> dict[str, Any]:
        """The place in the data as JSON: after the last group, or before it where its step did not finish."""
        ...

    def leave_out(self, epoch: int, batches: Iterable[int]) -> None:
        """Skip these batches of ``epoch`` when they come."""
        ...

    def on_filler(self) -> bool:
        """Whether the group just given only keeps this process in step with others: its samples are not its own."""
        ...


class Phase(Enum):
    """What the loop is doing, for whoever has to save when it is interrupted."""

    #: Weights, data position and random numbers all stand after the same step.
    BETWEEN = "between steps"
    #: The same, but the dataset's code may be drawing random numbers: those of the boundary count.
    FETCH = "waiting for data"
    #: The last boundary can still be restored.
    STEP = "in a step"
    #: Weights are half changed.
    UPDATE = "in an update"
    EVALUATION = "in an evaluation"


@dataclass(frozen=True)
class Unfinished:
    """What an interrupted run had still to do at the boundary where it was saved."""

    #: An evaluation was due.
    evaluation: bool = False
    #: The end of the epoch had not been announced.
    epoch_end: bool = False
    #: A callback had asked to stop.
    stop: bool = False


@dataclass
class Run:
    """Everything the loop needs; ``evaluate``, ``save``, ``log`` and ``finish`` are what the front door provides."""

    args: Any
    state: TrainerState
    control: TrainerControl
    callbacks: CallbackHandler
    engine: Engine
    feed: Feed
    log: Callable[[dict[str, float]], None]
    evaluate: Callable[[], dict[str, float]]
    save: Callable[[], None]
    finish: Callable[[], None]
    #: Sees each micro-batch before it is trained on (token and FLOP counts); None when nothing is counted.
    observe_batch: Callable[[Any], None] | None = None
    last_logged_step: int = 0
    #: Epoch before which no evaluation counts as the best.
    best_after: float = 0.0
    #: Looks at what comes from outside (a signal, the time); may raise to leave the loop.
    attend: Callable[[], None] = lambda: None
    #: Done first, where a run goes on from a checkpoint.
    unfinished: Unfinished = Unfinished()
    #: Puts random numbers and weights where the checkpoint left them, whatever was drawn on the way there.
    take_up_state: Callable[[], None] = lambda: None
    phase: Phase = Phase.BETWEEN
    #: How batches are cut to fit into memory.
    micro: MicroBatching = field(default_factory=MicroBatching)
    #: (batch, parts) -> pieces of it, in order.
    cut: Callable[[Any, int], list[Any]] = lambda batch, parts: [batch]
    #: (rows, parts): a step did not fit; batches of ``rows`` samples are now cut into ``parts``.
    redo: Callable[[int, int], None] = lambda rows, parts: None

    def fire(self, event: str, **kwargs: Any) -> None:
        """Tell the listeners of ``event``; they may set switches on ``control``."""
        if self.callbacks.listeners(event):
            self.callbacks.call_event(event, self.args, self.state, self.control, **kwargs)
