"""One evaluation of weights that a training has handed over, in whichever process does it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from trainwright.compat.accmt.asynchronous.queue import Entry, Result
from trainwright.compat.accmt.loop import Loop
from trainwright.compat.accmt.savings import Kept
from trainwright.compat.accmt.status import StatusKeeper

#: What of the status the training says; the rest is of evaluations.
OF_TRAINING = ("epoch", "epoch_step", "global_step", "learning_rate", "train_loss", "grad_norm")


@dataclass(frozen=True)
class TrainingLosses:
    """Stands for the losses of the training, as far as those who judge models look at them."""

    total: float
    count: int

    def sums(self) -> tuple[float, int]:
        return self.total, self.count


@dataclass(frozen=True)
class Measuring:
    """The tools of an evaluation: who runs it, who keeps the status, who keeps the best models."""

    native: Loop
    keeper: StatusKeeper
    kept: Sequence[Kept]

    def carried(self) -> dict[str, Any]:
        """What one evaluation leaves for the next, as JSON."""
        of_keeper = copy.deepcopy(self.keeper.state()["attributes"])
        status = {name: value for name, value in of_keeper.pop("saved_status").items() if name not in OF_TRAINING}
        of_keeper.pop("num_checkpoints")
        kept = {one.mode: copy.deepcopy(one.state()["attributes"]) for one in self.kept}
        return {"status": status, "keeper": of_keeper, "kept": kept}

    def adopt(self, carried: dict[str, Any]) -> None:
        """Go on from what an evaluation left."""
        found = copy.deepcopy(carried)
        self.keeper.status.update(found["status"])
        vars(self.keeper).update(found["keeper"])
        for one in self.kept:
            vars(one).update(found["kept"].get(one.mode, {}))

    def measure(self, entry: Entry, weights: dict[str, Tensor]) -> Result:
        """Evaluate ``weights`` as the training would have where it stood then; they stay in the model."""
        native = self.native
        # Before the weights come: an optimizer that evaluates others than it trains has put its own there then.
        native.engine.eval_mode(native.adapter)
        native.adapter.load_state_dict(weights)
        logs: list[dict[str, float]] = []
        with self._standing_at(entry):
            native.captured = logs
            try:
                native.evaluate_now()
            finally:
                native.captured = None
            return Result(step=entry.step, epoch=entry.epoch, logs=logs, carried=self.carried())

    @contextmanager
    def _standing_at(self, entry: Entry) -> Iterator[None]:
        """Everybody sees the training as it stood then."""
        state, keeper, references = self.native.state, self.keeper, self.native.callback_handler.references
        names = ("global_step", "epoch", "max_steps", "num_train_epochs")
        before = {name: getattr(state, name) for name in names}
        status = {name: keeper.status[name] for name in OF_TRAINING}
        flags = keeper.is_epoch_end, keeper.is_last_step
        losses = references.get("losses")
        state.global_step, state.epoch = entry.step, entry.epoch
        state.max_steps, state.num_train_epochs = entry.max_steps, entry.num_train_epochs
        keeper.status.update(entry.status)
        keeper.is_epoch_end, keeper.is_last_step = entry.is_epoch_end, entry.is_last_step
        references["losses"] = TrainingLosses(entry.losses[0], int(entry.losses[1]))
        try:
            yield
        finally:
            vars(state).update(before)
            keeper.status.update(status)
            keeper.is_epoch_end, keeper.is_last_step = flags
            references["losses"] = losses
