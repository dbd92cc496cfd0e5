"""Rows about a step: how its batch is cut, put together, padded, recomputed, accelerated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from trainwright.proving import causes, padding
from trainwright.proving.copies import TrainerCopy
from trainwright.proving.record import Record, compare
from trainwright.proving.refusals import first_line
from trainwright.proving.result import Row, measured
from trainwright.proving.stage import Stage, Way
from trainwright.training.acceleration import TECHNIQUES

#: What a failure means, for whoever reads the table.
Means = Callable[[Record, Record], str]


@dataclass(frozen=True)
class Attempt:
    """A row that can be tried.

    Args:
        trainings: How many plain trainings it takes about as long as.
        more_seconds: What it takes besides.
    """

    name: str
    run: Callable[[], Row]
    trainings: float = 2.0
    more_seconds: float = 0.0


def step_rows(stage: Stage, *, draws: str | None) -> list[Attempt]:
    """The rows about a step, the quick ones first.

    Args:
        draws: Why batches that are cut otherwise cannot be compared, if so.
    """
    most = max(stage.material.rows)
    half = -(-most // 2)
    pieces = Way({"micro_batch": half})
    single = Way({"micro_batch": 1})
    accumulated = Way(pieces=2)
    cut = [
        _cut(stage, "the batch in 2 pieces", pieces, 2, "the number of pieces"),
        _cut(stage, "micro_batch=1", single, most, "the number of pieces"),
        _cut(stage, "out of memory, then in pieces", _memory_runs_out(half), 2, "the number of pieces"),
        _cut(stage, "2 batches accumulated", accumulated, 2, "gradient_accumulation_steps"),
    ]
    if draws is not None or min(stage.material.rows) < 2:
        why = draws or "an update has one sample only, which cannot be cut"
        cut = [replace(attempt, run=partial(not_tried, attempt.name, why)) for attempt in cut]
    return [
        *cut,
        _checkpointing(stage),
        _padding(stage, draws),
        *(_accelerated(stage, name) for name in ("logits", "clip")),
    ]


def not_tried(name: str, why: str) -> Row:
    return Row(name, "not tried", why)


def compared(
    stage: Stage,
    name: str,
    way: Way,
    means: Means,
    *,
    dtype: torch.dtype | None = None,
    found: Record | None = None,
    loss_share: float | None = None,
) -> Row:
    """Train in a ``way``, and compare with the plain one; ``means`` is asked what a failure means.

    Args:
        found: What this training gave, where it has been done.
        loss_share: By how much losses may differ, where that is not what gradients may.
    """
    expected, allowed = stage.reference(dtype), replace(stage.allowed(dtype), loss=loss_share)
    start = time.perf_counter()
    if found is None:
        found = stage.train(way, dtype)
    row = measured(name, compare(found, expected), allowed, time.perf_counter() - start)
    return replace(row, why=means(found, expected)) if row.outcome == "fail" else row


def _cut(stage: Stage, name: str, way: Way, passes: int, divisor: str) -> Attempt:
    return Attempt(name, lambda: compared(stage, name, way, partial(_why_cut_differs, stage, way, passes, divisor)))


def _why_cut_differs(stage: Stage, way: Way, passes: int, divisor: str, found: Record, expected: Record) -> str:
    factor = causes.factor_of(found, expected)
    if factor is not None:
        return causes.said_of_factor(factor, divisor)
    # In the same pieces, but without what is done besides: a layer is found in them or not at all.
    plainly = replace(way, within=None, settings={"micro_batch": -(-max(stage.material.rows) // passes)}, pieces=1)
    return causes.said_of_samples(stage, plainly, passes)


def _memory_runs_out(half: int) -> Way:
    """The second update is broken off after its first pass, as if memory had run out, and done again in pieces."""
    watched: list[TrainerCopy] = []
    done: list[bool] = []

    @contextmanager
    def looking(copy: TrainerCopy) -> Iterator[None]:
        watched[:], done[:] = [copy], []
        yield
        watched.clear()

    @contextmanager
    def within() -> Iterator[None]:
        yield
        if not done and watched and watched[0].setup.state.global_step == 1:
            done.append(True)
            raise torch.OutOfMemoryError("prove lets memory run out here")

    return Way({"micro_batch": "auto"}, within=within, look=looking)


def _checkpointing(stage: Stage) -> Attempt:
    name = "gradient checkpointing"

    def run() -> Row:
        if not callable(getattr(stage.source.model, "gradient_checkpointing_enable", None)):
            return not_tried(name, "the model has no gradient_checkpointing_enable()")
        return compared(stage, name, Way({"gradient_checkpointing": True}), lambda *_: _RECOMPUTED)

    return Attempt(name, run)


_RECOMPUTED = (
    "a layer gives something else when it is computed again: it keeps a state (a counter, running statistics), or "
    "draws random numbers that are not torch's."
)


def _padding(stage: Stage, draws: str | None) -> Attempt:
    setup = stage.source
    whole = [update[0] for update in stage.material.batches()]
    reasons = [why for why in (padding.why_not_padded(setup, batch) for batch in whole) if why is not None]
    if reasons or draws is not None:
        name = f"{padding.MORE} more pad tokens"
        return Attempt(name, partial(not_tried, name, draws or reasons[0]), 0)
    count = min(padding.more(setup, batch) for batch in whole)
    name = f"{count} more pad tokens"
    way = Way(change=lambda batch: padding.padded(setup, batch, count))
    left = padding.pads_left(setup, whole[0])

    def means(found: Record, expected: Record) -> str:
        factor = causes.factor_of(found, expected)
        if factor is not None:
            return (
                f"every gradient is {factor:.4g} times what it should be: the loss divides by the number of "
                "positions, padding included; divide by that of the targets."
            )
        aligned = partial(causes.without_padding, count=count, left=left)
        layer = causes.first_different_layer(stage, way, 1, aligned)
        if layer.layer is None:
            return "padding reaches the loss: it counts positions that attention_mask or labels (-100) leave out."
        where = f"{layer.name} ({type(layer.layer).__name__})"
        return (
            f"padding reaches the other positions in {where}: attention without the mask, or a mean or maximum over "
            "all positions. Use attention_mask there."
        )

    def run() -> Row:
        try:
            return compared(stage, name, way, means)
        except Exception as error:
            # It was given a batch that is prove's own.
            return not_tried(name, f"a batch that prove padded is refused: {first_line(error)}")

    return Attempt(name, run)


def accelerated_blocks(stage: Stage) -> Attempt:
    """The one that compiles, which takes longest."""
    return replace(_accelerated(stage, "blocks"), more_seconds=40.0)


def _accelerated(stage: Stage, which: str) -> Attempt:
    name = f"acceleration: {which}"
    # Kernels are written, and compared with the plain way by a training itself, for the formats that are trained in.
    dtype = torch.float32

    def run() -> Row:
        settings: dict[str, Any] = {"max_grad_norm": stage.source.args.max_grad_norm or 1.0} if which == "clip" else {}
        expected, allowed = stage.reference(dtype, **settings), stage.allowed(dtype)
        start = time.perf_counter()
        found = stage.train(Way({**settings, "acceleration": [which]}), dtype)
        if which not in found.accelerated:
            return not_tried(name, f"a training leaves it out: {found.left_out.get(which, 'it says no reason')}")
        deviation = compare(found, expected)
        if which == "clip":
            # Gradients are clipped later than in the plain way.
            deviation = replace(deviation, gradient=None, gradient_at="")
        row = measured(name, deviation, allowed, time.perf_counter() - start)
        return replace(row, why=_ACCELERATED.format(which)) if row.outcome == "fail" else row

    says = {technique.name: technique.says for technique in TECHNIQUES}
    assert which in says
    return Attempt(name, run, trainings=4.0)


_ACCELERATED = (
    "with acceleration={0!r} a step is another one. Leave it out (acceleration=...), and please report it: this is a "
    "mistake of trainwright's."
)
