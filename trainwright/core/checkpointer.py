"""Where checkpoints go when they do not go to the run directory: what a run hands over, and to whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass
class Checkpoint:
    """A run at one moment: nested dicts and lists of tensors and of what JSON holds, nothing else.

    >>> bool(Checkpoint())
    False
    >>> bool(Checkpoint(trainer_state={"global_step": 3}))
    True
    """

    #: The model's weights by name.
    module_state: dict[str, Any] = field(default_factory=dict)
    #: Progress and logs: what ``trainer_state.json`` holds.
    trainer_state: dict[str, Any] = field(default_factory=dict)
    #: Optimizer, schedule, random numbers, the place in the data: what an exact resume needs.
    backend_state: dict[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.module_state or self.trainer_state or self.backend_state)


class Checkpointer(Protocol):
    """Keeps checkpoints somewhere: one file, an archive, another machine. Pass one as ``Trainer(checkpointer=...)``.

    ``save`` returns once the checkpoint is safe. If it raises, training goes on and says so loudly.
    """

    def save(self, checkpoint: Checkpoint, step: int) -> None:
        """Keep ``checkpoint``, taken after ``step`` optimizer steps."""
        ...

    def save_model(self, module_state: dict[str, Any], step: int) -> None:
        """Keep the weights of the finished model."""
        ...

    def load(self) -> Checkpoint | None:
        """The checkpoint to go on from, or None."""
        ...

    def latest(self) -> int | None:
        """The step of the newest checkpoint, or None; asked before :meth:`load`."""
        ...

    def close(self) -> None:
        """The training is over."""
        ...
