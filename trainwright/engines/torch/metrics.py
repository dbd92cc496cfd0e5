"""Metric objects (update, compute, reset) of torchmetrics among several processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist


def adds_up_over_processes(metric: object) -> bool:
    """Whether ``metric.compute()`` is over the batches of all processes, not of this one alone."""
    parts = _parts(metric)
    return bool(parts) and dist.is_available() and dist.is_initialized() and all(part._to_sync for part in parts)


@contextmanager
def without_sync(metric: object) -> Iterator[None]:
    """Let ``metric`` count what it has seen here, and nothing else."""
    before = [(part, part._to_sync) for part in _parts(metric)]
    for part, _ in before:
        part._to_sync = False
    try:
        yield
    finally:
        for part, value in before:
            part._to_sync = value


def _parts(metric: object) -> list[Any]:
    """The metrics of torchmetrics in ``metric``, one or a collection; none if it is somebody else's."""
    torchmetrics = sys.modules.get("torchmetrics")
    if torchmetrics is None or not isinstance(metric, (torchmetrics.Metric, torchmetrics.MetricCollection)):
        return []
    return [part for part in metric.modules() if isinstance(part, torchmetrics.Metric)]
