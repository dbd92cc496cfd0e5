"""One training: what there is from the call of ``train()`` to its end, and no longer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from trainwright.checkpoint.identity import Owner
from trainwright.checkpoint.run_lock import RunLock
from trainwright.checkpoint.saver import Saver
from trainwright.core.events import RunEvents
from trainwright.core.microbatching import MicroBatching
from trainwright.core.modifier import Site
from trainwright.core.run import Actions, Phase, Unfinished
from trainwright.core.speed import TimeSpent
from trainwright.core.stops import StopRequests
from trainwright.data.feed import TrainFeed
from trainwright.data.worker_deaths import DeferredDeaths
from trainwright.engines.torch.nonfinite import NonFiniteWatch
from trainwright.engines.torch.randomness import RandomState
from trainwright.training.plan import TrainingPlan
from trainwright.training.setup import Setup

if TYPE_CHECKING:
    from trainwright.core.config_history import Change
    from trainwright.engines.torch.made import Made
    from trainwright.training.acceleration import Acceleration
    from trainwright.training.capture import Capture
    from trainwright.training.course import CourseSoFar


class Told(NamedTuple):
    """What processes tell each other before a step; what all heard is the sum."""

    owes_a_save: int = 0
    is_asked_to_stop: int = 0
    #: By the clock of the first process; the others say zero.
    milliseconds: int = 0


@dataclass
class StoredTools:
    """Optimizer, schedule and scaler as they were read from a checkpoint of a run that was ``max_steps`` long."""

    tensors: dict[str, Tensor]
    rest: dict[str, Any]
    max_steps: int


@dataclass(kw_only=True)
class TrainingRun:
    """A ``core.run.Run``, with all that saving, resuming and stopping it needs; the same object through a rewind."""

    setup: Setup
    actions: Actions
    events: RunEvents
    saver: Saver
    capture: Capture
    #: Whose the run directory's checkpoints are, and whether it is known to be this run's.
    owner: Owner
    has_claimed: bool = False
    #: The right to write into the run directory; None in a process that does not write there.
    lock: RunLock | None = None
    #: The folder of the present save where nothing had that name: what is in it now, a subclass has put there.
    new_folder: Path | None = None
    #: Whether the present save is one of ours, and whether it was said that one was not.
    default_save_ran: bool = False
    own_save_was_noted: bool = False
    feed: TrainFeed = field(init=False)
    phase: Phase = Phase.BETWEEN
    #: What to do first, where the run goes on from a checkpoint.
    unfinished: Unfinished = field(default_factory=Unfinished)
    #: How batches are cut to fit into memory.
    micro: MicroBatching = field(default_factory=MicroBatching)
    #: Sees each micro-batch before it is trained on (token and FLOP counts); None when nothing is counted.
    observe_step: Callable[[list[Any]], None] | None = None
    last_logged_step: int = 0
    #: Whether a schedule that follows a metric is to hear of the present evaluation.
    tells_schedule: bool = False
    #: Epoch before which no evaluation counts as the best.
    best_after: float = 0.0
    plan: TrainingPlan = field(init=False)
    loader: Any = None
    nonfinite: NonFiniteWatch = field(init=False)
    #: Outputs that evaluations leave out.
    ignored_outputs: list[str] | None = None

    #: Held while a checkpoint is captured: the deadline's thread may want to do the same.
    saving: threading.Lock = field(default_factory=threading.Lock)
    #: What the last checkpoint holds: the same moment need not be saved twice.
    saved_snapshot: tuple[Any, ...] | None = None
    #: Signals and time that may ask to stop.
    stops: StopRequests | None = None
    #: Workers of loaders that died since the loop was last where it may be left.
    deaths: DeferredDeaths = field(default_factory=DeferredDeaths)
    #: Callbacks that watch over this run alone.
    guards: list[Any] = field(default_factory=list)
    #: The time by the first process, as all heard it.
    clock_began: float = 0.0
    agreed_seconds: float = 0.0
    #: What all processes said before the last step, until the run attends to it.
    heard: Told = Told()  # noqa: RUF009

    #: The library whose checkpoint this run goes on from, if it was imported.
    imported_from: str | None = None
    #: Random state of the checkpoint, until the first step after a resume takes it up.
    resumed_random: RandomState | None = None
    #: What a checkpoint holds of optimizer, schedule and scaler, while they are loaded.
    stored_tools: StoredTools | None = None
    #: Weights to train on with, by the optimizer's number, where the checkpoint's model holds others.
    weights_in_training: dict[int, Tensor] = field(default_factory=dict)
    #: Whether the run goes on with a cut of batches that it found earlier.
    cut_is_known: bool = False
    #: What makes it faster than a plain loop, and what did so when its checkpoint was saved.
    acceleration: Acceleration | None = None
    acceleration_then: dict[str, Any] | None = None
    #: What optimizer and schedule are made with, and what those of the checkpoint were; its arguments, if any.
    made: Made | None = None
    so_far: CourseSoFar | None = None
    config_then: dict[str, Any] | None = None
    #: Settings that are not those of the checkpoint, and all such changes since the run began.
    changes: list[Change] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    #: Whether it goes on because there is something to go on with, and not because it was asked to.
    resumes_by_itself: bool = False
    #: Whether it was resumed at its end, with nothing left to do: then its record stays as it is.
    is_over: bool = False
    #: Where the last rewind went and from which step, and what all of them have left out.
    last_rewind: tuple[Path, int] | None = None
    left_out: list[tuple[int, list[int]]] = field(default_factory=list)
    #: What a recipe's modifiers work on.
    site: Site | None = None

    #: Details of the newest evaluation of each set, for the report; and where that report is, when there is one.
    details: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: The data that each of them is about, where its order is known.
    detailed_sets: dict[str, Any] = field(default_factory=dict)
    report: str | None = None

    #: Where its time goes.
    spent: TimeSpent = field(default_factory=TimeSpent)
    first_step: int = 0
    start_time: float = 0.0
    tokens_at_start: int = 0
    log_takes_time: bool = True
    #: The step under way, and how many tokens and floating point operations there were before it.
    counts_before: tuple[int, int, float] | None = None
    summary: dict[str, float] = field(default_factory=dict)
    #: Why it ended before its last step, and the class of the callback that ended it.
    stopped_early: str | None = None
    stopped_by: str | None = None
    #: True while a resumed run looks for its place in the data: nothing was done since its checkpoint.
    is_finding_its_place: bool = False
