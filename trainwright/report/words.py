"""Numbers as a report writes them."""

from __future__ import annotations

import math
import time
from typing import Any

from trainwright.callbacks.wording import amount, duration, of_total

#: A cell of a table takes no more; files have the rest.
LONGEST = 600


def value_of(value: object) -> str:
    """A value of a setting or a log, for people.

    >>> value_of(0.912345), value_of(12.0), value_of(None), value_of([1, 2]), value_of(float("nan"))
    ('0.9123', '12', 'none', '[1, 2]', 'nan')
    """
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    return shortened(str(value))


def shortened(text: str, longest: int = LONGEST) -> str:
    """The beginning of a text that is too long, and how much there is of it."""
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"


def size_of(count: float) -> str:
    """Bytes as people say them.

    >>> size_of(980), size_of(25_400_000), size_of(-1)
    ('980 B', '25.4 MB', '0 B')
    """
    if not math.isfinite(count):
        return ""
    for size, letter in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.1f} {letter}"
    return f"{max(int(count), 0)} B"


def rate_of(per_second: float, unit: str) -> str:
    """A rate; large ones in thousands.

    >>> rate_of(490_000.0, "tokens"), rate_of(3.21, "samples")
    ('490.0K tokens/s', '3.21 samples/s')
    """
    return f"{amount(int(per_second)) if per_second >= 1000 else f'{per_second:.3g}'} {unit}/s"


def ago(then: float | None, now: float) -> str:
    """How long ago something was.

    >>> ago(0.0, 30.0), ago(0.0, 7200.0), ago(None, 1.0)
    ('30 s', '2 h', '')
    """
    if then is None or not math.isfinite(then):
        return ""
    seconds = max(now - then, 0.0)
    for size, letter in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {letter}"
    return f"{seconds:.0f} s"


def when(seconds: Any) -> str:
    """A point in time of this machine's clock."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 2**35:
        return "at an unknown time"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


__all__ = ["LONGEST", "ago", "amount", "duration", "of_total", "rate_of", "shortened", "size_of", "value_of", "when"]
