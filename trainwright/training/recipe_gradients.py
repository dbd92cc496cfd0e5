"""Gradients of training batches outside the training itself, for modifiers that judge weights by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from trainwright.core.engine import Portion
from trainwright.data.asked_order import data_seed
from trainwright.data.order import mixed_seed
from trainwright.data.position import starts_by_index
from trainwright.data.seeding import MapFetch
from trainwright.engines.torch.memory import release_memory
from trainwright.engines.torch.randomness import set_seed
from trainwright.training.random_state import random_now, restore_random_state
from trainwright.training.run import TrainingRun
from trainwright.training.setup import Setup


def sampled_gradients(run: TrainingRun) -> Callable[[int], Iterator[None]] | None:
    """``count -> iterator``, each step of which leaves the gradients of one batch in ``.grad``; None for a stream.

    Batches are drawn with (seed, step) and shared out among the processes, which sum their gradients. Afterwards
    gradients, buffers, random numbers and the place in the data are as they were.
    """
    setup, loader = run.setup, run.loader
    if not starts_by_index(loader):
        return None

    def gradients(count: int) -> Iterator[None]:
        engine = setup.engine
        random = random_now(setup)
        buffers = [(buffer, buffer.detach().clone()) for buffer in setup.model.buffers()]
        # Of the training's own passes: here a plain gradient is wanted.
        around, setup.pass_modifiers = setup.pass_modifiers, []
        was_training, appeared_evaluated = setup.model_wrapped.training, engine.appears_evaluated
        try:
            set_seed(mixed_seed(data_seed(setup.args), setup.state.global_step, 1))
            engine.train_mode()
            for batch in _batches(setup, loader, count):
                _leave_gradients(run, batch)
                yield
        finally:
            setup.pass_modifiers = around
            engine.clear_gradients()
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            if appeared_evaluated:
                engine.appear_evaluated()
            else:
                setup.model_wrapped.train(was_training)
            restore_random_state(setup, random)

    return gradients


def _batches(setup: Setup, loader: Any, count: int) -> Iterator[Any]:
    fetch = MapFetch(loader.dataset, loader.collate_fn, loader.fetch_seed)
    backend = setup.backend
    size = min(setup.args.train_batch_size * backend.world_size, len(loader.dataset))
    generator = torch.Generator().manual_seed(mixed_seed(data_seed(setup.args), setup.state.global_step))
    order: list[int] = []
    for _ in range(count):
        if len(order) < size:
            order = torch.randperm(len(loader.dataset), generator=generator).tolist()
        chosen, order = order[:size], order[size:]
        # Where there is less than a row for each process, some share one: all must take part in the sum.
        yield fetch(0, chosen[backend.rank :: backend.world_size] or chosen[:1])


def _leave_gradients(run: TrainingRun, batch: object) -> None:
    setup = run.setup
    engine = setup.engine
    _accumulate(run, batch)
    if not engine.is_alone:
        setup.backend.reduce_gradients(engine.parameters)
    scaler = engine.precision.scaler
    for parameter in engine.parameters:
        if parameter.grad is not None:
            if scaler is not None:
                parameter.grad.div_(scaler.get_scale())
            # fp16 may overflow: such a gradient says nothing.
            parameter.grad.nan_to_num_(0.0, 0.0, 0.0)


def _accumulate(run: TrainingRun, batch: object) -> None:
    """The gradient of a batch, cut as finely as those that are trained on."""
    setup = run.setup
    engine, micro = setup.engine, run.micro
    rows = engine.rows(batch) if micro.is_on else 1
    targets = engine.count_targets(batch)
    # Once: other processes do not hear of it when this one has to begin again.
    total = None if targets is None else engine.sum_counts(targets)
    while True:
        engine.clear_gradients()
        parts = micro.parts_for(rows)
        pieces = [batch] if parts == 1 else setup.hooks().split_batch(batch, parts)
        try:
            for piece in pieces:
                engine.forward_backward(piece, _portion(setup, piece, len(pieces), total), sync=False)
            return
        except Exception as error:
            if not micro.automatic or not engine.is_out_of_memory(error) or not micro.refine(rows):
                raise
        # Outside the except block: the error holds on to the tensors that did not fit.
        engine.clear_gradients()
        release_memory(engine.device)


def _portion(setup: Setup, piece: Any, pieces: int, total: Any) -> Portion:
    engine = setup.engine
    targets = engine.count_targets(piece)
    if targets is None or total is None:
        return Portion(targets, 1.0 / (pieces * setup.backend.world_size), None, pieces)
    if engine.is_alone and pieces == 1:
        return Portion(targets, 1.0, targets, 1)
    # No target at all: a weight of 0 then.
    shared = max(total, 1) if isinstance(total, int) else total.clip(min=1)
    return Portion(targets, targets / shared, total, pieces)
