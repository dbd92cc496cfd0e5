"""``log_loss_per`` in a training: who watches, what the data brings, what is logged."""

from __future__ import annotations

import logging
from typing import Any

from trainwright.data.columns import forward_columns
from trainwright.data.group_column import GroupColumnCollator, without_groups
from trainwright.engines.torch.loss_groups import LossGroups
from trainwright.training.hooks import is_overridden
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")


def prepare_loss_groups(setup: Setup) -> None:
    """Before a training: have losses watched where that was asked for."""
    watching = next((one for one in setup.callbacks.everyone if isinstance(one, LossGroups)), None)
    setup.loss_groups = watching
    if watching is not None and (setup.compute_loss_func is not None or is_overridden(setup.hooks(), "compute_loss")):
        logger.warning(
            "log_loss_per=%r shows plain cross-entropy (squared error for numbers), whatever your own loss weighs.",
            watching.by,
        )
    if watching is not None and "return_outputs" not in setup.calling.compute_loss_takes:
        raise ValueError(
            f"{type(setup.hooks()).__name__}.compute_loss must take return_outputs and return (loss, outputs) then: "
            f"log_loss_per={watching.by!r} looks at the outputs."
        )


def group_column(setup: Setup) -> str | None:
    """The column of the data that ``log_loss_per`` names, if it names one."""
    wanted = setup.args.log_loss_per
    return None if wanted in (None, "class") else wanted


def with_groups(setup: Setup, collate: Any, description: str) -> Any:
    """``collate``, with the group of each sample beside the batch of a training, and nowhere else."""
    column = group_column(setup)
    if column is None:
        return collate
    stays = setup.model is not None and column in (forward_columns(setup.model) or ())
    return GroupColumnCollator(collate, column, is_wanted=description == "training", stays=stays)


def watch_losses(setup: Setup, outputs: Any, inputs: Any) -> None:
    """Show the outputs of a micro-batch to whom they are of interest."""
    groups = setup.loss_groups
    if groups is not None:
        own, names = without_groups(inputs)
        groups.see(outputs, own, names, 1.0 if setup.portion is None else setup.portion.weight)


def add_group_losses(setup: Setup, logs: dict[str, float]) -> None:
    """What was seen since the log before; every process takes part."""
    if setup.loss_groups is not None:
        logs.update(setup.loss_groups.read(setup.backend.gather))
