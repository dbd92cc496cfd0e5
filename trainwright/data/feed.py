"""Training batches grouped by optimizer step, and where in the epoch they stand."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from trainwright.data.order import set_epoch_of

logger = logging.getLogger("trainwright")

Draw = Callable[[Iterator[Any], int], list[Any]]


def take(iterator: Iterator[Any], count: int) -> list[Any]:
    """The next ``count`` batches, fewer at the end."""
    return list(islice(iterator, count))


class TrainFeed:
    """Implements ``core.run.Feed`` over a loader.

    The position is ``(epoch, batches consumed in it)``: order is a function of seed and epoch, so that is all a resume
    needs. ``draw`` may be a user's ``get_batch_samples``.
    """

    def __init__(
        self,
        loader: Any,
        accumulation: int,
        batches_per_epoch: int | None,
        *,
        steps_if_unsized: int = 0,
        draw: Draw = take,
    ) -> None:
        self.loader = loader
        self.accumulation = accumulation
        self.batches_per_epoch = batches_per_epoch
        self.draw = draw
        self.epoch = 0
        self.consumed = 0
        self._start = 0
        self._after_skip: Callable[[], None] | None = None
        self._epoch_is_over = False
        # Without a length, an "epoch" in the progress display is the whole planned run, as in HF.
        self._denominator = batches_per_epoch or max(steps_if_unsized * accumulation, 1)

    def start_at(self, epoch: int, batches: int, after_skip: Callable[[], None] | None = None) -> None:
        """Continue in ``epoch`` after ``batches`` batches.

        ``after_skip`` is called before the first batch is fetched: reading past samples may draw random numbers.
        """
        self.epoch = epoch
        self._start = batches
        self._after_skip = after_skip

    def position(self) -> dict[str, int]:
        """What ``start_at`` needs to continue from here.

        An epoch whose batches are all consumed is not over before its end was announced: a run resumed from its last
        step still has the evaluation at its end to do.
        """
        if self._epoch_is_over:
            return {"epoch": self.epoch + 1, "batches": 0}
        return {"epoch": self.epoch, "batches": self.consumed}

    def close_epoch(self) -> None:
        self._epoch_is_over = True

    def groups(self) -> Iterator[list[Any]]:
        set_epoch(self.loader, self.epoch)
        if self.batches_per_epoch is not None:
            # Batches by token budget differ in number from epoch to epoch.
            self.batches_per_epoch = self._denominator = len(self.loader)
        skip, self._start = self._start, 0
        self.consumed = skip
        self._epoch_is_over = False
        iterator = self._iterator_after(skip)
        if self._after_skip is not None:
            self._after_skip()
            self._after_skip = None
        while group := self.draw(iterator, self.accumulation):
            self.consumed += len(group)
            yield group

    def _iterator_after(self, skip: int) -> Iterator[Any]:
        """Batches after the first ``skip``: by index where the sampler can, else by reading past them."""
        if skip and hasattr(getattr(self.loader, "batch_sampler", None), "start_at"):
            self.loader.batch_sampler.start_at(skip)
            return iter(self.loader)
        iterator = iter(self.loader)
        if skip:
            logger.info("Resuming reads past %d batches: this loader cannot start in the middle.", skip)
            next(islice(iterator, skip, skip), None)
        return iterator

    def epoch_progress(self) -> float:
        return self.epoch + self.consumed / self._denominator

    def on_last_group(self) -> bool:
        return self.batches_per_epoch is not None and self.consumed >= self.batches_per_epoch


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell whatever in ``loader`` shuffles by epoch which epoch it is; ours passes it on by itself."""
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)
        return
    for part in ("batch_sampler", "sampler", "dataset"):
        set_epoch_of(getattr(loader, part, None), epoch)
