"""One optimizer step: accumulate the gradient over the micro-batches, then update."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trainwright.config.intervals import log_is_likely
from trainwright.core.engine import Portion, Step
from trainwright.core.microbatching import to_give_away
from trainwright.core.run import Phase, Run


def take_step(run: Run, batches: list[Any]) -> None:
    """Run ``batches`` as one update whose gradient does not depend on how the batch was cut.

    Up to the update a step is a transaction: one that does not fit into memory leaves no trace and is done again in
    smaller pieces.
    """
    engine = run.setup.engine
    if run.observe_step is not None:
        run.observe_step(batches)
    loss = accumulate_in_pieces(run, batches) if run.micro.is_on else accumulate(run, batches)
    loss = engine.finish_gradients(loss, norm_wanted=log_is_due(run))
    run.setup.fire("on_pre_optimizer_step")
    run.phase = Phase.UPDATE
    engine.apply_update()
    engine.record_loss(loss)
    run.setup.fire("on_optimizer_step")
    engine.clear_gradients()


def accumulate(run: Run, pieces: list[Any], progress: Progress | None = None) -> Any:
    """The gradient of a step, piece by piece; returns its loss."""
    engine, loss = run.setup.engine, None
    work = list(zip(pieces, portions(run, pieces, progress), strict=True))
    if engine.runs_in_step:
        work += fillers(engine, *work[-1], missing=engine.most(len(work)) - len(work))
    last = len(work) - 1
    for index, (piece, portion) in enumerate(work):
        if progress is not None and index < len(pieces):
            progress.piece = index
        part = engine.forward_backward(piece, portion, sync=index == last)
        if part is not None:
            loss = part if loss is None else loss + part
        if index < len(pieces) - 1 and (progress is None or progress.ends_a_batch()):
            run.setup.fire("on_substep_end")
    return loss


def fillers(engine: Step, piece: object, portion: Portion, missing: int) -> list[tuple[Any, Portion]]:
    """Passes without weight, where other processes have more pieces and would wait for this one in theirs."""
    return [(piece, portion._replace(targets=0, weight=0.0))] * missing


@dataclass
class Progress:
    """How far a step that runs in pieces has come, over all attempts."""

    #: For each piece the number of the batch it was cut from.
    batch_of: list[int] = field(default_factory=list)
    #: The piece that is being worked on.
    piece: int = 0
    #: Batches whose end listeners have heard of: an event is fired once, however often a step is done again.
    told: int = 0
    #: What the step's losses are weighed by, over all processes; one that does its part again does not ask again.
    total: Any = None

    def ends_a_batch(self) -> bool:
        """Whether the present piece is the last of its batch, and that is news."""
        batch = self.batch_of[self.piece]
        is_news = self.batch_of[self.piece + 1] != batch and batch == self.told
        self.told += is_news
        return is_news


def accumulate_in_pieces(run: Run, batches: list[Any]) -> Any:
    """The same, the batches cut as finely as they have to be; what does not fit is undone and done again."""
    progress = Progress()
    while True:
        cut = [pieces_of(run, batch) for batch in batches]
        progress.batch_of = [number for number, pieces in enumerate(cut) for _ in pieces]
        try:
            loss = accumulate(run, [piece for pieces in cut for piece in pieces], progress)
        except Exception as error:
            if not run.micro.automatic or not run.setup.engine.is_out_of_memory(error):
                raise
            rows = run.setup.engine.rows(batches[progress.batch_of[progress.piece]])
            if not run.micro.refine(rows):
                error.add_note("trainwright: even one sample at a time does not fit into memory.")
                raise
        else:
            run.micro.fitted()
            return loss
        # Outside the except block: the error holds on to the tensors that did not fit.
        run.setup.engine.undo_step()
        run.actions.redone(run, rows, run.micro.parts)


def pieces_of(run: Run, batch: object) -> list[Any]:
    """``batch``, cut as finely as it has to be at present."""
    parts = run.micro.parts_for(run.setup.engine.rows(batch))
    return [to_give_away(batch)] if parts == 1 else run.actions.cut(run, batch, parts)


def portions(run: Run, pieces: list[Any], progress: Progress | None = None) -> list[Portion]:
    """Weight each micro-batch by its share of the step's targets: a mean of means would not do."""
    engine, count = run.setup.engine, len(pieces)
    if count == 1 and engine.is_alone:
        return [whole_step(engine.count_targets(pieces[0]))]
    targets = [engine.count_targets(piece) for piece in pieces]
    if run.feed.on_filler():
        # There was nothing left for this process; it takes part in the step all the same.
        targets = [0 for _ in targets]
    if any(number is None for number in targets):
        batch_of = progress.batch_of if progress is not None else list(range(count))
        batches = _total(engine, len(set(batch_of)), progress)
        return [Portion(None, 1.0 / (batches * batch_of.count(batch)), None, count) for batch in batch_of]
    total = _total(engine, sum(targets), progress)
    if isinstance(total, (int, float)):
        # No target anywhere: weight 0, so that the engine selects the contribution away.
        return [Portion(number, number / total if total else 0.0, total, count) for number in targets]
    return [Portion(number, number / total, total, count) for number in targets]


def _total(engine: Step, own: object, progress: Progress | None) -> Any:
    if progress is None:
        return engine.sum_counts(own)
    if progress.total is None:
        progress.total = engine.sum_counts(own)
    return progress.total


def whole_step(targets: Any) -> Portion:
    """A step of one micro-batch: nothing to weigh, unless there is no target in it."""
    if targets is None:
        return Portion(None, 1.0, None, 1)
    if isinstance(targets, (int, float)):
        return Portion(targets, 1.0 if targets else 0.0, targets, 1)
    # Counted on the device: whether there is any target is known only there. They may weigh less than one together.
    return Portion(targets, (targets > 0) * 1, targets, 1)


def log_is_due(run: Run) -> bool:
    """Whether this step will be logged by the default flow, so that its gradient norm is worth computing."""
    return log_is_likely(run.setup.args, run.setup.state, epoch_ends=run.feed.on_last_group())
