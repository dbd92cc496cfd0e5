"""``check_weights_every``: whether all processes still have the same weights."""

from __future__ import annotations

import logging
from typing import Any

import torch

from trainwright.config.arguments import TrainingArguments
from trainwright.core.backend import Backend
from trainwright.core.callback import TrainerCallback
from trainwright.core.errors import DivergedError
from trainwright.core.events import RunEvents
from trainwright.core.layout import Layout
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.engines.torch.checksum import checksums, in_minority
from trainwright.engines.torch.targets import unwrap

logger = logging.getLogger("trainwright")


class WeightCheck(TrainerCallback):
    """Compares checksums of the weights of all processes every so many steps, before anything is saved."""

    _is_internal = True

    def __init__(self, every: int, backend: Backend, events: RunEvents) -> None:
        self._every, self._backend, self._events = every, backend, events
        self._agreed_at: int | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._agreed_at = state.global_step

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step % self._every:
            return
        named = dict(unwrap(kwargs["model"]).named_parameters())
        sums = checksums(named.values()).cpu()
        # One number first: that they are all the same is the usual case.
        digests = [int(value) for value in self._of_all(checksums([sums]))[:, 0]]
        odd = in_minority(digests)
        if not odd:
            self._agreed_at = state.global_step
            return
        self._end(odd, digests, self._of_all(sums), list(named), state.global_step)

    def _of_all(self, mine: torch.Tensor) -> torch.Tensor:
        """A row for each process."""
        rows = torch.zeros(self._backend.world_size, len(mine), dtype=torch.int64)
        rows[self._backend.rank] = mine
        return self._backend.sum(rows)

    def _end(self, odd: list[int], digests: list[int], rows: torch.Tensor, names: list[str], step: int) -> None:
        differs = (rows != rows[0]).any(dim=0)
        first = names[int(differs.nonzero()[0])]
        ranks = ", ".join(str(rank) for rank in odd)
        if len(odd) == len(digests):
            who = f"The weights of ranks {ranks} differ, and none has a majority"
        else:
            who = f"The weights of rank {ranks} are not those of the other {len(digests) - len(odd)}"
        message = (
            f"{who}: {int(differs.sum())} of {len(names)} parameters differ, {first} first. At step {self._agreed_at} "
            f"they were the same{_of_saved(odd)}. A broken device, or code that changes weights in one process only, "
            "does this; go on from a checkpoint of that step or before."
        )
        self._events.record("diverged", message, step=step, ranks=odd, parameter=first, agreed_at=self._agreed_at)
        raise DivergedError(message)


def _of_saved(odd: list[int]) -> str:
    """The first process writes the weights."""
    return "; checkpoints since then may hold the wrong ones" if 0 in odd else ""


def weight_check(every: int | None, layout: Layout, backend: Backend, events: RunEvents) -> WeightCheck | None:
    """The guard that ``check_weights_every`` asks for; refused where each process has weights of its own."""
    if every is None:
        return None
    if layout.in_parts or layout.gathered_to_save:
        raise ValueError(
            f"check_weights_every={every} compares whole copies of the weights, and with {layout.name} each process "
            "has a part of its own: leave it out, or use backend='ddp'."
        )
    if backend.world_size == 1:
        logger.info("check_weights_every=%d: there is one process, so nothing is compared.", every)
        return None
    return WeightCheck(every, backend, events)
