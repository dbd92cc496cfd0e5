"""What stands in for transformers' Trainer and arguments underneath other libraries."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from trainwright import trainer as native
from trainwright.compat.library_state import state_of, take_up, why_not_exact
from trainwright.config import arguments, seq2seq
from trainwright.config.backends import rank_from_environment
from trainwright.core.results import TrainOutput
from trainwright.engines.torch.backends import DistributedProcesses

logger = logging.getLogger("trainwright")

__all__ = ["Seq2SeqTrainer", "Seq2SeqTrainingArguments", "Trainer", "TrainingArguments"]


@dataclass(repr=False)
class TrainingArguments(arguments.TrainingArguments):
    """Our arguments, with accelerate's own record of the processes, which other libraries ask for directly."""

    has_accelerate_state = True

    def __post_init__(self) -> None:
        super().__post_init__()
        # Libraries log through accelerate, which wants its state, before they build the Trainer.
        _accelerate_state(self)

    @property
    def distributed_state(self) -> Any:
        """accelerate's ``PartialState``, where accelerate is installed."""
        return _accelerate_state(self) or super().distributed_state


@dataclass(repr=False)
class Seq2SeqTrainingArguments(seq2seq.Seq2SeqTrainingArguments, TrainingArguments):
    """The same for training that generates."""


class Trainer(native.Trainer):
    """Our Trainer, for subclasses that were written for transformers'."""

    #: Their ``compute_loss`` counts on transformers' ``num_items_in_batch``, which is that of all processes.
    counts_over_processes = True

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        _accelerate_state(self.args)

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        if reason := why_not_exact(self):
            logger.warning("A resume of this run is not exact: %s.", reason)
        return super().train(*args, **kwargs)

    def get_state(self) -> dict[str, Any]:
        return state_of(self, alone=self.args.world_size == 1)

    def update_state(self, state: dict[str, Any]) -> None:
        take_up(self, state)


class Seq2SeqTrainer(native.Seq2SeqTrainer, Trainer):
    """The same of the one that generates."""


def _accelerate_state(args: arguments.TrainingArguments) -> Any:
    """accelerate's state of this process: begun, as its own ``Accelerator`` would, if nobody has; None without it."""
    try:
        from accelerate import Accelerator, PartialState
        from accelerate.state import is_initialized
    except ImportError:
        return None
    place = rank_from_environment()
    if place.world_size > 1:
        # Ours first: it finds the others again after a restart, and leaves the group when the process ends.
        DistributedProcesses(*place, communication=args.ddp_backend).start(args)
    if not is_initialized():
        Accelerator(cpu=args.use_cpu, mixed_precision=args.mixed_precision)
    return PartialState()
