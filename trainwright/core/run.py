"""A run is a plain record; functions in ``loop`` act on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from trainwright.core.callback import CallbackHandler
from trainwright.core.engine import Engine
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

    def epoch_progress(self) -> float:
        """Epochs consumed so far, with the fraction of the current one."""
        ...

    def on_last_group(self) -> bool:
        """Whether the group just given is known to be the epoch's last."""
        ...


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

    def fire(self, event: str, **kwargs: Any) -> None:
        """Tell the listeners of ``event``; they may set switches on ``control``."""
        if self.callbacks.listeners(event):
            self.callbacks.call_event(event, self.args, self.state, self.control, **kwargs)
