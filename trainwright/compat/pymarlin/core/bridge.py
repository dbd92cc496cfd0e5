"""PyMarlin's checkpointers, as the Trainer behind the door uses them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from trainwright.checkpoint.training_state import TRAINING
from trainwright.compat.pymarlin.core.adapter import Progress
from trainwright.compat.pymarlin.utils.checkpointer.checkpoint_utils import AbstractCheckpointer, Checkpoint
from trainwright.core.checkpointer import Checkpoint as NativeCheckpoint

logger = logging.getLogger("trainwright")

#: Where, in ``trainer_backend_state``, everything is that an exact resume needs.
EXACT = "exact"


class Bridge:
    """A ``core.checkpointer.Checkpointer`` that saves to, and was loaded from, one of PyMarlin's.

    Args:
        checkpointer: The user's.
        present: The present states of module, trainer and backend.
        shares_weights: Whether the module's state is its weights, which need then be kept only once.
        progress: Where the run stands.
        epochs: How many there will be.
    """

    def __init__(
        self,
        checkpointer: AbstractCheckpointer,
        present: Callable[[], Checkpoint],
        *,
        shares_weights: bool,
        progress: Progress,
        epochs: int,
    ) -> None:
        self._checkpointer, self._present = checkpointer, present
        self._shares_weights, self._progress, self._epochs = shares_weights, progress, epochs
        #: What the run goes on from.
        self.loaded: NativeCheckpoint | None = None
        #: Set for a save that the user asks for: its ``force``.
        self.asked: bool | None = None

    def save(self, checkpoint: NativeCheckpoint, step: int) -> None:
        whole = self._present()
        weights: Any = checkpoint.module_state
        if self._shares_weights:
            # Those of the checkpoint: they are copies, and of the right moment.
            whole.module_interface_state = {**(whole.module_interface_state or {}), **checkpoint.module_state}
            weights = list(checkpoint.module_state)
        exact = {
            "weights": weights,
            "trainer_state": checkpoint.trainer_state,
            "backend_state": checkpoint.backend_state,
            "before": [self._progress.epochs_before, self._progress.steps_before],
        }
        whole.trainer_backend_state = {**(whole.trainer_backend_state or {}), EXACT: exact}
        self._checkpointer.save(whole, *self._index_and_force())

    def _index_and_force(self) -> tuple[int, bool]:
        """The epoch that is finished, or the one that was interrupted."""
        last, in_epoch = self._progress.last_epoch, self._progress.steps_since > 0
        if self.asked is not None:
            return last, self.asked
        if in_epoch or last < 0:
            return last + 1, True
        return last, not self._progress.is_planned_save or last == self._epochs - 1

    def save_model(self, module_state: dict[str, Any], step: int) -> None:
        self._checkpointer.save_model(self._present().module_interface_state or {}, self._progress.last_epoch)

    def load(self) -> NativeCheckpoint | None:
        return self.loaded

    def latest(self) -> int | None:
        return None if self.loaded is None else int(self.loaded.backend_state["step"])

    def close(self) -> None:
        self.loaded = None


def exact_part(checkpoint: Checkpoint, progress: Progress, *, reset_optimizers: bool) -> NativeCheckpoint | None:
    """What the Trainer goes on from exactly; None where the checkpoint does not hold it."""
    exact = (checkpoint.trainer_backend_state or {}).get(EXACT)
    if not exact:
        return None
    progress.epochs_before, progress.steps_before = exact.get("before", (0, 0))
    weights = exact["weights"]
    if isinstance(weights, list):
        held = checkpoint.module_interface_state or {}
        missing = [name for name in weights if name not in held]
        if missing:
            raise ValueError(
                f"The checkpoint's module_interface_state has no {missing[0]!r}: the checkpointer must give back from "
                "load() what save() was given."
            )
        weights = {name: held[name] for name in weights}
    backend = dict(exact["backend_state"])
    if reset_optimizers:
        files = dict(backend["files"])
        files[TRAINING] = {**files[TRAINING], "optimizer": None}
        backend["files"] = files
    return NativeCheckpoint(weights, exact["trainer_state"], backend)


def go_on_after(progress: Progress, steps: int) -> None:
    """Go on from a checkpoint, PyMarlin's for example, that has no more than the end of an epoch."""
    logger.warning(
        "The checkpoint has weights and optimizers after epoch %d, but no random numbers and no place in the data: the "
        "run goes on with the next epoch, not exactly as it would have.",
        progress.last_epoch,
    )
    progress.epochs_before, progress.steps_before = progress.last_epoch + 1, steps


def compare_epochs(exact: NativeCheckpoint, epochs: int) -> None:
    """Say so where schedulers were made for another number of epochs."""
    before = exact.trainer_state["num_train_epochs"]
    if before != epochs:
        logger.warning(
            "The schedulers were made for %d epochs and this run has %d: set reset_optimizers_schedulers=True to make "
            "new ones for the epochs that are left.",
            before,
            epochs,
        )
