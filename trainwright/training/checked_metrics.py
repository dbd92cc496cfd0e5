"""``compute_metrics`` with a word for those who return a bare number."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from trainwright.core.errors import NotMetricsError
from trainwright.loop.evaluate import is_streaming_metric


def checked_metrics(metric: Any) -> Any:
    """``metric`` itself where it is an object with a state; a function refuses to return anything but metrics by name.

    >>> checked_metrics(lambda prediction: 0.5)(None)
    Traceback (most recent call last):
    trainwright.core.errors.NotMetricsError: compute_metrics returned float (0.5), and must return a dict of numbers...
    """
    if metric is None or is_streaming_metric(metric):
        return metric

    @functools.wraps(metric, updated=())
    def checked(*args: Any, **kwargs: Any) -> Any:
        found = metric(*args, **kwargs)
        # None is what metrics by batch give until the last; pairs of names and numbers make a dict as well.
        if isinstance(found, (float, int, str)) or (found is not None and not _is_named(found)):
            raise NotMetricsError("compute_metrics", found)
        return found

    return checked


def _is_named(found: object) -> bool:
    if isinstance(found, Mapping) or hasattr(found, "keys"):
        return True
    return isinstance(found, (list, tuple)) and all(isinstance(one, (list, tuple)) and len(one) == 2 for one in found)
