"""Make batches fit into memory: how they are cut, and the look before the first step."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.core.engine import Portion
from trainwright.core.microbatching import MicroBatching, to_give_away
from trainwright.data.lengths import sample_lengths
from trainwright.data.position import starts_by_index
from trainwright.data.seeding import MapFetch
from trainwright.engines.torch.memory import is_out_of_memory, release_memory
from trainwright.engines.torch.randomness import random_state, set_random_state
from trainwright.training.random_state import random_now, restore_random_state
from trainwright.training.run import TrainingRun
from trainwright.training.setup import Setup
from trainwright.training.stop import leave_if_asked

logger = logging.getLogger("trainwright")


#: Batches among which the largest is looked for, where the samples' lengths are not known.
BATCHES_LOOKED_AT = 4


def new_micro_batching(setup: Setup) -> MicroBatching:
    wanted = setup.args.micro_batch
    if wanted == "auto":
        return MicroBatching(automatic=True)
    assert not isinstance(wanted, str)
    if wanted is not None and wanted < setup.args.train_batch_size:
        note_piece_effects(setup)
    return MicroBatching(limit=wanted)


def take_up_cut(run: TrainingRun, saved: dict[str, Any] | None) -> None:
    """Go on with the cut of a checkpoint: where pieces end decides how sums are rounded."""
    if saved is not None and run.micro.automatic:
        run.micro.load_state_dict(saved)
        run.cut_is_known = True


def micro_batch_size(run: TrainingRun) -> int:
    """Samples of a training batch that run at once at present."""
    setup = run.setup
    rows = setup.args.train_batch_size
    return math.ceil(rows / run.micro.parts_for(rows))


def step_was_redone(run: TrainingRun, rows: int, parts: int) -> None:
    """A step did not fit and is being done again in smaller pieces."""
    setup = run.setup
    note_piece_effects(setup)
    if setup.loss_groups is not None:
        setup.loss_groups.forget_step()
    run.events.record(
        "cut_finer",
        f"Step {setup.state.global_step + 1} did not fit into memory; it is done again, its {rows} samples in "
        f"{parts} pieces. Nothing is lost: the step, its gradient and the schedule stay the same.",
        step=setup.state.global_step + 1,
        rows=rows,
        parts=parts,
    )


def note_piece_effects(setup: Setup) -> None:
    """Say once what in this model depends on the samples that run together."""
    if setup.piece_effects_were_noted:
        return
    setup.piece_effects_were_noted = True
    modules = list(setup.model.modules())
    found = []
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in modules):
        found.append("BatchNorm takes its statistics from each piece")
    if any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 for module in modules):
        found.append("dropout draws other numbers")
    if found:
        logger.warning("Batches run in pieces: %s, so weights differ from an uncut run's.", " and ".join(found))


def look_for_what_fits(run: TrainingRun) -> None:
    """Find, on the longest samples, a cut that fits with gradients and optimizer state in memory.

    Nothing of it stays: weights, buffers, optimizer and random numbers are put back.
    """
    setup = run.setup
    if not run.micro.automatic or run.cut_is_known:
        return
    batch = largest_batch(setup.train_dataset, setup.args.length_column_name, run.loader)
    if setup.engine.runs_in_step:
        # The same everywhere: processes that wait for each other must run out of memory at the same place.
        batch = max(setup.backend.gather(batch), key=_elements)
        if batch is None:
            raise ValueError(
                'micro_batch="auto" cannot look at this data before it is trained on, and processes that shard a '
                "model cannot do a step again: give micro_batch a number."
            )
    if batch is None:
        logger.info(
            "micro_batch='auto': this data cannot be looked at before it is trained on, so the first step that "
            "does not fit will show how far batches have to be cut."
        )
        return
    with nothing_stays(setup):
        refine_until_it_fits(run, batch)
    rows = setup.engine.rows(batch)
    if run.micro.parts > 1:
        note_piece_effects(setup)
        run.events.record(
            "cut",
            f"A batch of {rows} samples does not fit into memory: it runs in {run.micro.parts} pieces.",
            rows=rows,
            parts=run.micro.parts,
            level=logging.INFO,
        )
    if setup.engine.runs_in_step:
        run.micro.settle(rows)


def refine_until_it_fits(run: TrainingRun, batch: object) -> None:
    setup = run.setup
    rows = setup.engine.rows(batch)
    setup.engine.train_mode()
    error = error_of_pieces(run, [_smallest_piece(run, batch, rows)])
    if error is not None:
        # Where it could not be cut, that is what has to be said.
        run.actions.cut(run, batch, rows)
        raise error
    if not any(inner.state for inner in getattr(setup.optimizer, "optimizers", [setup.optimizer])):
        setup.optimizer.step()
    while True:
        pieces = run.actions.cut(run, batch, run.micro.parts_for(rows)) if run.micro.parts > 1 else [batch]
        # The second runs beside the gradients of the first.
        error = error_of_pieces(run, pieces[:2])
        if error is None:
            return
        if not run.micro.refine(rows):
            raise error
        error = None
        release_memory(setup.engine.device)


def error_of_pieces(run: TrainingRun, pieces: list[Any]) -> Exception | None:
    """Run ``pieces``; the error, if they did not fit in this process or in one it runs in step with."""
    setup = run.setup
    found: Exception | None = None
    leave_if_asked(run)
    try:
        for piece in pieces:
            targets = setup.engine.count_targets(piece)
            # Where processes run in step anyway, the last one sums, and no gradient stays behind.
            sync = setup.engine.runs_in_step and piece is pieces[-1]
            setup.engine.forward_backward(to_give_away(piece), Portion(targets, 1.0, targets, 1), sync=sync)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        # Without what it refers to: the tensors that did not fit.
        found = error.with_traceback(None)
    if setup.engine.runs_in_step and setup.engine.most(int(found is not None)) and found is None:
        found = torch.OutOfMemoryError("The batch did not fit into the memory of another process.")
    if found is not None:
        setup.engine.weights.recover()
    return found


@contextmanager
def nothing_stays(setup: Setup) -> Iterator[None]:
    """Weights, buffers, gradients, optimizer and random numbers are afterwards as they are now."""
    random = random_now(setup)
    tensors = [*setup.model.parameters(), *setup.model.buffers()]
    # In main memory: the device is about to be filled to the brim.
    before = [tensor.detach().to("cpu", copy=True) for tensor in tensors]
    # A forward pass may put another tensor into a buffer's place.
    hung = [(module, name, kept) for module in setup.model.modules() for name, kept in module._buffers.items()]
    inner = getattr(setup.optimizer, "optimizers", [setup.optimizer])
    had_state = any(optimizer.state for optimizer in inner)
    try:
        yield
    finally:
        setup.engine.weights.recover()
        setup.engine.clear_gradients()
        if not had_state:
            for optimizer in inner:
                optimizer.state.clear()
        for module, name, kept in hung:
            module._buffers[name] = kept
        with torch.no_grad():
            for tensor, old in zip(tensors, before, strict=True):
                tensor.copy_(old)
        restore_random_state(setup, random)
        release_memory(setup.engine.device)
        if setup.module is not None:
            setup.module.on_step_redo()


def largest_batch(dataset: Any, length_column: str, loader: Any) -> Any:
    """The longest samples as one batch, or the largest of the first few batches; None for a stream."""
    if not starts_by_index(loader):
        return None
    random = random_state()
    try:
        chosen = longest_samples(dataset, length_column, loader)
        batches = [chosen] if chosen else list(islice(iter(loader.batch_sampler), BATCHES_LOOKED_AT))
        fetch = MapFetch(loader.dataset, loader.collate_fn, loader.fetch_seed)
        # Plain lists: also what is only a filler for this process is a batch of its size.
        collated = [fetch(0, list(batch)) for batch in batches]
    finally:
        set_random_state(*random)
    return max(collated, key=_elements, default=None)


def longest_samples(dataset: Any, length_column: str, loader: Any) -> list[int] | None:
    """Indices of the longest samples, a batch of them, where the dataset has a column that tells."""
    columns = getattr(dataset, "column_names", None)
    size = getattr(loader.batch_sampler, "batch_size", None)
    if size is None or not isinstance(columns, list) or length_column not in columns:
        return None
    lengths = sample_lengths(dataset, length_column)
    return sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)[:size]


def _smallest_piece(run: TrainingRun, batch: object, rows: int) -> Any:
    """One sample; or the whole of a batch that cannot be cut, which is no harm if it fits."""
    try:
        return run.actions.cut(run, batch, rows)[0]
    except ValueError:
        return batch


def _elements(batch: object) -> int:
    """Numbers in all tensors of a batch; 0 where there is none."""
    if batch is None:
        return 0
    if isinstance(batch, Tensor):
        return batch.numel()
    values = batch.values() if hasattr(batch, "values") else batch if isinstance(batch, (list, tuple)) else ()
    return sum(_elements(value) for value in values)
