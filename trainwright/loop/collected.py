"""Evaluation by several processes: in step with each other, and put together in the order of the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from trainwright.core.engine import Exchange

#: What is kept of each piece.
_KEPT = ("predictions", "labels", "inputs", "losses")


@dataclass
class Collected:
    """Outputs gathered over the batches, on the host."""

    predictions: list[Any] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    losses: list[Any] = field(default_factory=list)
    samples: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    #: Of each batch, the number of its samples and that of its pieces.
    batches: list[tuple[int, int]] = field(default_factory=list)


def in_step(
    batches: Iterator[tuple[Any, bool]], engine: Exchange, idle: Callable[[Any], None]
) -> Iterator[tuple[Any, bool]]:
    """``batches``, each with whether it is the last, unchanged; one that is done goes on without effect until all are.

    Around whatever looks ahead: between two questions every process runs exactly one batch.
    """
    if not engine.runs_in_step:
        yield from batches
        return
    batch: Any = None
    while engine.most(int((following := next(batches, None)) is not None)):
        if following is None:
            idle(batch)
        else:
            batch = following[0]
            yield following


def all_processes(parts: list[Collected], sharing: str | None) -> tuple[Collected, list[int] | None]:
    """What all processes have collected, by batches in the order of the data, and where each row belongs.

    The second is None where rows are in order.
    """
    whole = Collected(samples=sum(part.samples for part in parts), metrics=parts[0].metrics)
    queues = [_Batches(part) for part in parts]
    if sharing is None:
        turns = [queue for queue in queues for _ in queue.batches]
    else:
        rounds = max((len(queue.batches) for queue in queues), default=0)
        turns = [queue for number in range(rounds) for queue in queues if number < len(queue.batches)]
    order: list[int] = []
    for queue in turns:
        before, rows = queue.samples, queue.move_to(whole)
        # Sample k of the process r is number k x processes + r of all.
        order += [(before + row) * len(parts) + queues.index(queue) for row in range(rows)]
    return whole, order if sharing == "samples" else None


class _Batches:
    """The batches of one process, to be taken one by one."""

    def __init__(self, collected: Collected) -> None:
        self.batches, self.samples = collected.batches, 0
        self._number = 0
        self._lists = [iter(getattr(collected, name)) for name in _KEPT]

    def move_to(self, whole: Collected) -> int:
        """Give the next batch away; returns its number of rows."""
        rows, pieces = self.batches[self._number]
        for name, values in zip(_KEPT, self._lists, strict=True):
            getattr(whole, name).extend(islice(values, pieces))
        self._number += 1
        self.samples += rows
        return rows
