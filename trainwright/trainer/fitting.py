"""Trainer methods that make batches fit into memory: how they are cut, and the look before the first step."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.config.fields import ours
from trainwright.core.engine import Portion
from trainwright.core.microbatching import MicroBatching
from trainwright.core.run import Run
from trainwright.data.lengths import sample_lengths
from trainwright.data.position import starts_by_index
from trainwright.data.seeding import MapFetch
from trainwright.engines.torch.memory import is_out_of_memory, release_memory
from trainwright.engines.torch.randomness import random_state, set_random_state
from trainwright.trainer.bookkeeping import BookkeepingMethods

logger = logging.getLogger("trainwright")

#: Batches among which the largest is looked for, where the samples' lengths are not known.
BATCHES_LOOKED_AT = 4


class FittingMethods(BookkeepingMethods):
    """``micro_batch``: a number of samples, or "auto"."""

    _micro = MicroBatching()
    #: Whether the run goes on with a cut that it found earlier.
    _cut_is_known = False
    _piece_effects_were_noted = False

    def _new_micro_batching(self) -> MicroBatching:
        wanted = ours(self.args, "micro_batch")
        if wanted == "auto":
            return MicroBatching(automatic=True)
        if wanted is not None and wanted < self.args.train_batch_size:
            self._note_piece_effects()
        return MicroBatching(limit=wanted)

    def _take_up_cut(self, saved: dict[str, Any] | None) -> None:
        """Go on with the cut of a checkpoint: where pieces end decides how sums are rounded."""
        if saved is not None and self._micro.automatic:
            self._micro.load_state_dict(saved)
            self._cut_is_known = True

    @property
    def micro_batch_size(self) -> int:
        """Samples of a training batch that run at once at present."""
        rows = self.args.train_batch_size
        return math.ceil(rows / self._micro.parts_for(rows))

    def _step_was_redone(self, rows: int, parts: int) -> None:
        """A step did not fit and is being done again in smaller pieces."""
        self._note_piece_effects()
        self._events.record(
            "cut_finer",
            f"Step {self.state.global_step + 1} did not fit into memory; it is done again, its {rows} samples in "
            f"{parts} pieces. Nothing is lost: the step, its gradient and the schedule stay the same.",
            step=self.state.global_step + 1,
            rows=rows,
            parts=parts,
        )

    def _note_piece_effects(self) -> None:
        """Say once what in this model depends on the samples that run together."""
        if self._piece_effects_were_noted:
            return
        self._piece_effects_were_noted = True
        modules = list(self.model.modules())
        found = []
        if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in modules):
            found.append("BatchNorm takes its statistics from each piece")
        if any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 for module in modules):
            found.append("dropout draws other numbers")
        if found:
            logger.warning("Batches run in pieces: %s, so weights differ from an uncut run's.", " and ".join(found))

    # ---- before the first step

    def _look_for_what_fits(self, run: Run, loader: Any) -> None:
        """Find, on the longest samples, a cut that fits with gradients and optimizer state in memory.

        Nothing of it stays: weights, buffers, optimizer and random numbers are put back.
        """
        if not run.micro.automatic or self._cut_is_known:
            return
        batch = self._largest_batch(loader)
        if self.engine.runs_in_step:
            # The same everywhere: processes that wait for each other must run out of memory at the same place.
            batch = max(self._backend.gather(batch), key=_elements)
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
        with self._nothing_stays():
            self._refine_until_it_fits(run, batch)
        rows = self.engine.rows(batch)
        if run.micro.parts > 1:
            self._note_piece_effects()
            self._events.record(
                "cut",
                f"A batch of {rows} samples does not fit into memory: it runs in {run.micro.parts} pieces.",
                rows=rows,
                parts=run.micro.parts,
                level=logging.INFO,
            )
        if self.engine.runs_in_step:
            run.micro.settle(rows)

    def _refine_until_it_fits(self, run: Run, batch: Any) -> None:
        rows = self.engine.rows(batch)
        self.engine.train_mode()
        error = self._error_of(run, [_smallest_piece(run, batch, rows)])
        if error is not None:
            # Where it could not be cut, that is what has to be said.
            run.cut(batch, rows)
            raise error
        if not any(inner.state for inner in getattr(self.optimizer, "optimizers", [self.optimizer])):
            self.optimizer.step()
        while True:
            pieces = run.cut(batch, run.micro.parts_for(rows)) if run.micro.parts > 1 else [batch]
            # The second runs beside the gradients of the first.
            error = self._error_of(run, pieces[:2])
            if error is None:
                return
            if not run.micro.refine(rows):
                raise error
            error = None
            release_memory(self.engine.device)

    def _error_of(self, run: Run, pieces: list[Any]) -> Exception | None:
        """Run ``pieces``; the error, if they did not fit in this process or in one it runs in step with."""
        found: Exception | None = None
        self._leave_if_asked()
        try:
            for piece in pieces:
                targets = run.engine.count_targets(piece)
                # Where processes run in step anyway, the last one sums, and no gradient stays behind.
                sync = self.engine.runs_in_step and piece is pieces[-1]
                run.engine.forward_backward(piece, Portion(targets, 1.0, targets, 1), sync=sync)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            # Without what it refers to: the tensors that did not fit.
            found = error.with_traceback(None)
        if self.engine.runs_in_step and self.engine.most(int(found is not None)) and found is None:
            found = torch.OutOfMemoryError("The batch did not fit into the memory of another process.")
        if found is not None:
            self.strategy.recover()
        return found

    @contextmanager
    def _nothing_stays(self) -> Iterator[None]:
        """Weights, buffers, gradients, optimizer and random numbers are afterwards as they are now."""
        random = self._random_now()
        tensors = [*self.model.parameters(), *self.model.buffers()]
        # In main memory: the device is about to be filled to the brim.
        before = [tensor.detach().to("cpu", copy=True) for tensor in tensors]
        # A forward pass may put another tensor into a buffer's place.
        hung = [(module, name, kept) for module in self.model.modules() for name, kept in module._buffers.items()]
        inner = getattr(self.optimizer, "optimizers", [self.optimizer])
        had_state = any(optimizer.state for optimizer in inner)
        try:
            yield
        finally:
            self.strategy.recover()
            self.engine.clear_gradients()
            if not had_state:
                for optimizer in inner:
                    optimizer.state.clear()
            for module, name, kept in hung:
                module._buffers[name] = kept
            with torch.no_grad():
                for tensor, old in zip(tensors, before, strict=True):
                    tensor.copy_(old)
            self._restore_random_state(random)
            release_memory(self.engine.device)
            if self._module is not None:
                self._module.on_step_redo()

    def _largest_batch(self, loader: Any) -> Any:
        """The longest samples as one batch, or the largest of the first few batches; None for a stream."""
        if not starts_by_index(loader):
            return None
        random = random_state()
        try:
            chosen = self._longest_samples(loader)
            batches = [chosen] if chosen else list(islice(iter(loader.batch_sampler), BATCHES_LOOKED_AT))
            fetch = MapFetch(loader.dataset, loader.collate_fn, loader.fetch_seed)
            # Plain lists: also what is only a filler for this process is a batch of its size.
            collated = [fetch(0, list(batch)) for batch in batches]
        finally:
            set_random_state(*random)
        return max(collated, key=_elements, default=None)

    def _longest_samples(self, loader: Any) -> list[int] | None:
        """Indices of the longest samples, a batch of them, where the dataset has a column that tells."""
        columns = getattr(self.train_dataset, "column_names", None)
        size = getattr(loader.batch_sampler, "batch_size", None)
        name = self.args.length_column_name
        if size is None or not isinstance(columns, list) or name not in columns:
            return None
        lengths = sample_lengths(self.train_dataset, name)
        return sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)[:size]


def _smallest_piece(run: Run, batch: Any, rows: int) -> Any:
    """One sample; or the whole of a batch that cannot be cut, which is no harm if it fits."""
    try:
        return run.cut(batch, rows)[0]
    except ValueError:
        return batch


def _elements(batch: Any) -> int:
    """Numbers in all tensors of a batch; 0 where there is none."""
    if batch is None:
        return 0
    if isinstance(batch, Tensor):
        return batch.numel()
    values = batch.values() if hasattr(batch, "values") else batch if isinstance(batch, (list, tuple)) else ()
    return sum(_elements(value) for value in values)
