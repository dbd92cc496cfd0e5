"""Evaluation and prediction over a loader: sums and counts, never a mean of means."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, islice, zip_longest
from typing import Any

import numpy as np

from trainwright.core.engine import Evaluator
from trainwright.core.microbatching import MicroBatching, finer
from trainwright.core.results import EvalLoopOutput, EvalPrediction
from trainwright.loop.collected import Collected, all_processes, in_step

PADDING = -100


@dataclass
class EvaluationPlan:
    """What to compute over a loader."""

    #: (batch) -> (loss, predictions, labels, inputs kept for metrics); each may be None.
    step: Callable[[Any], tuple[Any, Any, Any, Any]]
    compute_metrics: Any = None
    keep_predictions: bool = True
    concatenate: bool = True
    batch_metrics: bool = False
    include: tuple[str, ...] = ()
    after_batch: Callable[[], None] | None = None
    prefix: str = "eval"
    #: How batches are cut to fit into memory, and what cuts one.
    micro: MicroBatching = field(default_factory=MicroBatching)
    cut: Callable[[Any, int], list[Any]] = lambda batch, parts: [batch]
    #: Dataset index of each row, where the loader does not go in dataset order; what is kept is put back.
    order: Sequence[int] | None = None
    #: "samples" or "batches" that processes take turns with; None where each has neighbours.
    sharing: str | None = None
    #: Whether a metric object adds up over processes by itself, and how to keep it from doing so.
    metric_syncs: bool = False
    unsynced: Callable[[], AbstractContextManager[Any]] = nullcontext
    #: Runs a batch (the last one, or None) and forgets it, where this process is done and others are not.
    idle: Callable[[Any], None] = lambda batch: None


def evaluate(plan: EvaluationPlan, loader: Iterable[Any], engine: Evaluator) -> EvalLoopOutput:
    """Run ``plan`` over ``loader``; ``<prefix>_loss`` is the mean over all targets, however they are batched."""
    seen, mean = Collected(), engine.weighted_mean()
    streaming = is_streaming_metric(plan.compute_metrics)
    batches, by_piece = iter(loader), streaming or (plan.batch_metrics and plan.compute_metrics is not None)
    if streaming:
        plan.compute_metrics.reset()
    afterwards = False
    if by_piece and not engine.is_alone:
        batches, afterwards = metric_waits(plan, batches, engine, streaming)
    for batch, is_last_batch in in_step(with_last(batches), engine, plan.idle):
        before, pieces = seen.samples, 0
        for piece, result, is_last_piece in in_pieces(plan, engine, batch):
            loss, predictions, labels, inputs = result
            rows, weight = engine.rows(piece), engine.count_targets(piece)
            seen.samples, pieces = seen.samples + rows, pieces + 1
            if loss is not None:
                mean.add(loss, rows if weight is None else weight)
            if streaming and not afterwards:
                update_streaming_metric(plan.compute_metrics, predictions, labels)
            elif by_piece and not afterwards and labels is not None:
                is_last = is_last_batch and is_last_piece
                seen.metrics = batch_metrics(plan, is_last, predictions, labels, inputs, loss)
            else:
                keep(seen, plan, engine, predictions, labels, inputs, loss, rows)
        seen.batches.append((seen.samples - before, pieces))
        if plan.after_batch is not None:
            plan.after_batch()
    if not engine.is_alone:
        seen, order = all_processes(engine.gather(seen), plan.sharing)
        plan = plan if order is None else replace(plan, order=order)
    if afterwards:
        seen = measure_afterwards(plan, seen, engine, streaming)
    with plan.unsynced() if afterwards else nullcontext():
        return conclude(plan, seen, mean.value(), streaming)


def metric_waits(
    plan: EvaluationPlan, batches: Iterator[Any], engine: Evaluator, streaming: bool
) -> tuple[Iterator[Any], bool]:
    """Whether a metric that sees batch after batch must wait for those of all processes; and the batches.

    Not if it adds up over processes by itself; but no metric can add up what has no shape yet, where a process has no
    batch at all.
    """
    first = list(islice(batches, 1))
    has_empty = bool(engine.most(int(not first)))
    return chain(first, batches), has_empty or not (streaming and plan.metric_syncs)


def measure_afterwards(plan: EvaluationPlan, seen: Collected, engine: Evaluator, streaming: bool) -> Collected:
    """Show the metric the batches of all processes, in their order, on every process."""
    if not streaming and not seen.labels:
        return seen
    found: dict[str, Any] = {}
    for place, kept in enumerate(zip_longest(seen.predictions, seen.labels, seen.inputs, seen.losses), 1):
        predictions, labels, inputs, losses = map(engine.from_host, kept)
        if streaming:
            update_streaming_metric(plan.compute_metrics, predictions, labels)
        else:
            found = batch_metrics(plan, place == len(seen.labels), predictions, labels, inputs, losses)
    return Collected(samples=seen.samples, metrics=found)


def in_pieces(plan: EvaluationPlan, engine: Evaluator, batch: object) -> Iterator[tuple[Any, Any, bool]]:
    """Run ``batch``, in pieces where it does not fit; each with its result and whether it is the last."""
    micro = plan.micro
    if not micro.is_on:
        yield batch, plan.step(batch), True
        return
    rows = engine.rows(batch)
    parts = micro.parts_for(rows)
    waiting = deque(plan.cut(batch, parts) if parts > 1 else [batch])
    while waiting:
        piece = waiting.popleft()
        try:
            result = plan.step(piece)
        except Exception as error:
            smaller = finer(engine.rows(piece), 1)
            if not micro.automatic or smaller is None or not engine.is_out_of_memory(error):
                raise
        else:
            yield piece, result, not waiting
            continue
        # Outside the except block: the error holds on to the tensors that did not fit.
        engine.release_memory()
        micro.refine(rows)
        waiting.extendleft(reversed(plan.cut(piece, smaller)))


def keep(
    seen: Collected,
    plan: EvaluationPlan,
    engine: Evaluator,
    predictions: object,
    labels: object,
    inputs: object,
    loss: Any,
    rows: int,
) -> None:
    """Move one batch's outputs to the host."""
    if predictions is not None and plan.keep_predictions:
        seen.predictions.append(engine.to_host(predictions))
    if labels is not None and plan.keep_predictions:
        seen.labels.append(engine.to_host(labels))
    if inputs is not None and "inputs" in plan.include:
        seen.inputs.append(engine.to_host(inputs))
    if loss is not None and "loss" in plan.include:
        seen.losses.append(np.full(rows, engine.to_host(loss)))


def batch_metrics(
    plan: EvaluationPlan, is_last: bool, predictions: object, labels: object, inputs: object, loss: Any
) -> dict[str, Any]:
    """HF's ``batch_eval_metrics``: the metric sees each batch and sums up when told to."""
    prediction = EvalPrediction(
        predictions,
        labels,
        inputs=inputs if "inputs" in plan.include else None,
        losses=loss if "loss" in plan.include else None,
    )
    return plan.compute_metrics(prediction, compute_result=is_last) or {}


def is_streaming_metric(metric: object) -> bool:
    """Whether ``metric`` is a torchmetrics-style object (update, compute, reset) rather than a function."""
    return all(callable(getattr(metric, name, None)) for name in ("update", "compute", "reset"))


def update_streaming_metric(metric: Any, predictions: Any, labels: Any) -> None:
    """Feed one batch; of several model outputs the first is the prediction."""
    if predictions is None or labels is None:
        raise ValueError("A streaming metric needs predictions and labels, but this evaluation batch has no labels.")
    metric.update(predictions[0] if isinstance(predictions, (tuple, list)) else predictions, labels)


def conclude(plan: EvaluationPlan, seen: Collected, loss: float | None, streaming: bool) -> EvalLoopOutput:
    """Join what was kept and compute the metrics."""
    join = joiner(plan, seen.samples)
    predictions = join(seen.predictions) if seen.predictions else None
    labels = join(seen.labels) if seen.labels else None
    metrics = dict(seen.metrics)
    if streaming:
        metrics = streaming_result(plan.compute_metrics)
    elif plan.compute_metrics is not None and not plan.batch_metrics and predictions is not None and labels is not None:
        extra = {
            "inputs": join(seen.inputs) if seen.inputs else None,
            "losses": join(seen.losses) if seen.losses else None,
        }
        metrics = dict(plan.compute_metrics(EvalPrediction(predictions, labels, **extra)) or {})
    metrics = {name: plain(value) for name, value in metrics.items()}
    if loss is not None:
        metrics[f"{plan.prefix}_loss"] = loss
    named = {n if n.startswith(f"{plan.prefix}_") else f"{plan.prefix}_{n}": v for n, v in metrics.items()}
    return EvalLoopOutput(predictions, labels, named, seen.samples)


def joiner(plan: EvaluationPlan, samples: int) -> Callable[[list[Any]], Any]:
    """How batches become one: left apart, concatenated, or concatenated and put back in dataset order."""
    if not plan.concatenate:
        return list
    if plan.order is None:
        return concatenate
    back = np.argsort(np.asarray(plan.order[:samples]))
    return lambda parts: reordered(concatenate(parts), back)


def reordered(value: object, order: np.ndarray) -> Any:
    """Rows of the arrays in ``value`` in ``order``."""
    if isinstance(value, (tuple, list)) and value and isinstance(value[0], np.ndarray):
        return type(value)(reordered(item, order) for item in value)
    if isinstance(value, dict):
        return {key: reordered(item, order) for key, item in value.items()}
    if isinstance(value, list) and len(value) == len(order):
        return [value[place] for place in order]
    return value[order] if isinstance(value, np.ndarray) and len(value) == len(order) else value


def streaming_result(metric: Any) -> dict[str, Any]:
    """Value of a metric object: a collection's dict as it is, one value under the metric's name in lower case."""
    result = metric.compute()
    return dict(result) if isinstance(result, dict) else {type(metric).__name__.lower(): result}


def plain(value: object) -> Any:
    """A Python number in place of a zero-dimensional array or tensor, so that logs are JSON."""
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return value.item()
    if hasattr(value, "tolist"):
        return value.tolist()
    return value


def with_last(items: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """Each item with whether it is the last one, for loaders that do not know their length."""
    iterator = iter(items)
    for current in iterator:
        for following in iterator:
            yield current, False
            current = following
        yield current, True


def concatenate(parts: list[Any]) -> Any:
    """Join batches along the first axis; arrays of different length are padded with -100, as HF does.

    One allocation and one copy of each part, which is then let go (``parts`` is emptied): linear in time and memory.
    """
    first = parts[0]
    if isinstance(first, (tuple, list)):
        columns = [list(column) for column in zip(*parts, strict=True)]
        parts.clear()
        return type(first)(concatenate(column) for column in columns)
    if isinstance(first, dict):
        named = {key: [part[key] for part in parts] for key in first}
        parts.clear()
        return {key: concatenate(column) for key, column in named.items()}
    if not isinstance(first, np.ndarray):
        return [element for part in parts for element in (part if isinstance(part, list) else [part])]
    del first
    parts[:] = [np.atleast_1d(part) for part in parts]
    rows = sum(len(part) for part in parts)
    trailing = np.max([part.shape[1:] for part in parts], axis=0).astype(int) if parts[0].ndim > 1 else ()
    even = all(part.shape[1:] == tuple(trailing) for part in parts)
    dtype = np.result_type(*{part.dtype for part in parts})
    shape = (rows, *trailing)
    joined = np.empty(shape, dtype) if even else np.full(shape, PADDING, dtype)
    start = 0
    for index, part in enumerate(parts):
        joined[(slice(start, start + len(part)), *map(slice, part.shape[1:]))] = part
        start += len(part)
        parts[index] = None
    parts.clear()
    return joined


def accepts_compute_result(metric: Any) -> bool:
    """Whether ``metric`` can be used with ``batch_eval_metrics``."""
    try:
        return "compute_result" in inspect.signature(metric).parameters
    except (TypeError, ValueError):
        return False
