"""One optimizer step: accumulate the gradient over the micro-batches, then update."""

from __future__ import annotations

from typing import Any

from trainwright.config.intervals import log_is_likely
from trainwright.core.engine import Portion
from trainwright.core.run import Phase, Run


def take_step(run: Run, batches: list[Any]) -> None:
    """Run ``batches`` as one update whose gradient does not depend on how the batch was cut."""
    engine = run.engine
    loss: Any = None
    last = len(batches) - 1
    for index, (batch, portion) in enumerate(zip(batches, portions(run, batches), strict=True)):
        if run.observe_batch is not None:
            run.observe_batch(batch)
        part = engine.forward_backward(batch, portion, sync=index == last)
        if part is not None:
            loss = part if loss is None else loss + part
        if index < last:
            run.fire("on_substep_end")
    engine.finish_gradients(loss, norm_wanted=log_is_due(run))
    run.fire("on_pre_optimizer_step")
    run.phase = Phase.UPDATE
    engine.apply_update()
    engine.record_loss(loss)
    run.fire("on_optimizer_step")
    engine.clear_gradients()


def portions(run: Run, batches: list[Any]) -> list[Portion]:
    """Weight each micro-batch by its share of the step's targets: a mean of means would not do."""
    if len(batches) == 1:
        return [whole_step(run.engine.count_targets(batches[0]))]
    targets = [run.engine.count_targets(batch) for batch in batches]
    pieces = len(batches)
    if any(count is None for count in targets):
        return [Portion(count, 1.0 / pieces, None, pieces) for count in targets]
    total = sum(targets)
    if isinstance(total, int):
        # No target anywhere: weight 0, so that the engine selects the contribution away.
        return [Portion(count, count / total if total else 0.0, total, pieces) for count in targets]
    return [Portion(count, count / total, total, pieces) for count in targets]


def whole_step(targets: Any) -> Portion:
    """A step of one micro-batch: nothing to weigh, unless there is no target in it."""
    if targets is None:
        return Portion(None, 1.0, None, 1)
    if isinstance(targets, int):
        return Portion(targets, 1.0 if targets else 0.0, targets, 1)
    # Counted on the device: whether there is any target is known only there.
    return Portion(targets, targets.clip(max=1), targets, 1)


def log_is_due(run: Run) -> bool:
    """Whether this step will be logged by the default flow, so that its gradient norm is worth computing."""
    return log_is_likely(run.args, run.state, epoch_ends=run.feed.on_last_group())
