"""Losses and regularisers that are objects: what they have to know of the data, and what they do not go with."""

from __future__ import annotations

import logging

from trainwright.core.modifier import Modifier
from trainwright.data.labels import labels_in
from trainwright.engines.torch.loss_functions.base import Loss
from trainwright.engines.torch.regularisers.base import refuse_together
from trainwright.engines.torch.targets import unwrap
from trainwright.training.random_state import random_now, restore_random_state, watch_generators
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")


def prepare_loss(setup: Setup, *, anew: bool) -> None:
    """Let the loss count the labels of the training data, where it weighs classes by them.

    ``anew`` counts again: a training may have other data than the one before.
    """
    loss = setup.compute_loss_func
    if not isinstance(loss, Loss) or not loss.counts_labels or setup.train_dataset is None:
        return
    if loss.found_weights is not None and not anew:
        return
    if setup.calling.shifts_for_loss:
        raise ValueError(
            "Balanced class weights are for classes, and this model learns the next token: give the weights as a list."
        )
    # A dataset may draw random numbers for its samples: those of the run are not to be spent on this.
    watch_generators(setup)
    before = random_now(setup)
    try:
        loss.take_labels(labels_in(setup.train_dataset, setup.label_names))
    finally:
        restore_random_state(setup, before)


def refuse_pieces(setup: Setup) -> None:
    """Say, or refuse, where what becomes of a batch is not what becomes of its pieces."""
    loss, args = setup.compute_loss_func, setup.args
    if isinstance(loss, Loss) and args.label_smoothing_factor:
        raise ValueError(
            f"label_smoothing_factor smooths the default loss, and {type(loss).__name__} is in its place: leave it "
            "out, or take CrossEntropyLoss(smoothing=...)."
        )
    refuse_together(setup.modifiers, unwrap(setup.model))
    for one in (loss, *setup.modifiers):
        if isinstance(one, (Loss, Modifier)) and one.joins_samples is not None:
            _refuse_or_say(setup, type(one).__name__, one.joins_samples)
        if isinstance(one, Modifier) and one.one_process and args.data_processes > 1:
            raise ValueError(
                f"{type(one).__name__} goes by the gradients of one process, and there are {args.data_processes}: "
                "train on one, or leave it out."
            )


def _refuse_or_say(setup: Setup, name: str, reason: str) -> None:
    args = setup.args
    if args.micro_batch is not None:
        raise ValueError(
            f"micro_batch={args.micro_batch!r} cuts batches, which changes what {name} computes: {reason}. "
            "Leave it out, and make the batch as small as it has to be."
        )
    accumulation, processes = args.gradient_accumulation_steps, args.data_processes
    pieces = [f"accumulation over {accumulation} batches"] if accumulation > 1 else []
    pieces += [f"{processes} processes"] if processes > 1 else []
    if pieces:
        logger.warning(
            "%s: %s, so with %s the gradient is the mean of those of batches of %d, and not that of one large batch.",
            name,
            reason,
            " and ".join(pieces),
            args.train_batch_size,
        )
