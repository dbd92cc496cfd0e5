"""A run is a record of one training; the functions in ``loop`` and ``training`` act on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from trainwright.core.engine import Step
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


@dataclass(frozen=True)
class Done:
    """A run came to its end."""


@dataclass(frozen=True)
class Stopped:
    """Somebody outside asked the run to stop: a signal, the time, another process."""

    reason: str
    by_keyboard: bool = False


@dataclass(frozen=True)
class Rewind:
    """Too many steps in a row were not finite: go back to a checkpoint and leave out the batches that they had."""

    step: int
    #: Pairs of epoch and batch numbers.
    batches: list[tuple[int, list[int]]]


#: How the loop was left.
Outcome = Done | Stopped | Rewind


class Setup(Protocol):
    """What the loop sees of what lives with the Trainer."""

    @property
    def args(self) -> Any: ...
    @property
    def state(self) -> TrainerState: ...
    @property
    def control(self) -> TrainerControl: ...
    @property
    def engine(self) -> Step: ...

    def fire(self, event: str, **kwargs: Any) -> None:
        """Tell the listeners of ``event``; they may set switches on the control."""
        ...


class Actions(Protocol):
    """What the loop asks for and does not do itself; ``training/actions.py`` does it."""

    def log(self, run: Any, logs: dict[str, float]) -> Rewind | None:
        """Log; where that shows that steps were not finite, the run may have to go back."""
        ...

    def evaluate(self, run: Any) -> dict[str, float]:
        """Metrics of the model as it is."""
        ...

    def note_best(self, run: Any, metrics: dict[str, float]) -> bool:
        """Remember a new best metric in the state; True if it is one."""
        ...

    def save(self, run: Any) -> None:
        """Write a checkpoint."""
        ...

    def attend(self, run: Any) -> Rewind | Stopped | None:
        """Look at what comes from outside the loop (a signal, the time), and at steps that were not finite."""
        ...

    def settle(self, run: Any) -> Rewind | None:
        """After the last step: wait for what is not known yet of the last ones."""
        ...

    def finish(self, run: Any) -> None:
        """Sum the run up, before ``on_train_end``."""
        ...

    def rewind(self, run: Any, rewind: Rewind) -> None:
        """Put the run back to its newest good checkpoint."""
        ...

    def take_up_state(self, run: Any) -> None:
        """Put random numbers and weights where the checkpoint left them, whatever was drawn on the way there."""
        ...

    def cut(self, run: Any, batch: Any, parts: int) -> list[Any]:
        """``batch`` in pieces, in order."""
        ...

    def redone(self, run: Any, rows: int, parts: int) -> None:
        """A step did not fit; batches of ``rows`` samples are now cut into ``parts``."""
        ...


class Run(Protocol):
    """One training, as the loop sees it; ``training/run.py`` has the record."""

    phase: Phase
    last_logged_step: int
    #: Whether a schedule that follows a metric is to hear of the present evaluation.
    tells_schedule: bool

    @property
    def setup(self) -> Setup: ...
    @property
    def actions(self) -> Actions: ...
    @property
    def feed(self) -> Feed: ...

    @property
    def micro(self) -> MicroBatching:
        """How batches are cut to fit into memory."""
        ...

    @property
    def observe_step(self) -> Callable[[list[Any]], None] | None:
        """Sees the batches of a step before it is taken (token and FLOP counts); None when nothing is counted."""
        ...

    @property
    def best_after(self) -> float:
        """Epoch before which no evaluation counts as the best."""
        ...

    @property
    def unfinished(self) -> Unfinished:
        """What to do first, where a run goes on from a checkpoint."""
        ...
