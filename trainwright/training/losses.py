"""A loss that is an object: what it has to know of the data, and what it does not go together with."""

from __future__ import annotations

import logging

from trainwright.data.labels import labels_in
from trainwright.engines.torch.loss_functions.base import Loss
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


def refuse_loss_of_pieces(setup: Setup) -> None:
    """Say, or refuse, where the loss of a batch is not the mean of the losses of its pieces."""
    loss, args = setup.compute_loss_func, setup.args
    if not isinstance(loss, Loss):
        return
    name = type(loss).__name__
    if args.label_smoothing_factor:
        raise ValueError(
            f"label_smoothing_factor smooths the default loss, and {name} is in its place: leave it out, or take "
            "CrossEntropyLoss(smoothing=...)."
        )
    if loss.joins_samples is None:
        return
    if args.micro_batch is not None:
        raise ValueError(
            f"micro_batch={args.micro_batch!r} cuts batches, which changes what {name} computes: {loss.joins_samples}. "
            "Leave it out, and make the batch as small as it has to be."
        )
    pieces = [
        words
        for words, count in (
            (f"accumulation over {args.gradient_accumulation_steps} batches", args.gradient_accumulation_steps),
            (f"{args.data_processes} processes", args.data_processes),
        )
        if count > 1
    ]
    if pieces:
        logger.warning(
            "%s: %s, so with %s the gradient is the mean of those of batches of %d, and not that of one large batch.",
            name,
            loss.joins_samples,
            " and ".join(pieces),
            args.train_batch_size,
        )
