"""How finely batches are cut so that they fit into memory, and when to try larger pieces again.

A step is a transaction (``loop/step.py``): when it runs out of memory it is undone and done again in more parts.
Whoever trains sees no difference but the time it takes: the same samples, the same gradient, the same schedule.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from copy import copy
from dataclasses import dataclass
from typing import Any


def finer(rows: int, parts: int) -> int | None:
    """The next larger number of parts for a batch of ``rows`` samples: equal ones if possible, at most twice as many.

    None where every sample is already alone.

    >>> finer(32, 1), finer(90, 2), finer(97, 1), finer(4, 4)
    (2, 3, 2, None)
    """
    if parts >= rows:
        return None
    doubled = min(2 * parts, rows)
    equal = (count for count in range(parts + 1, doubled + 1) if rows % count == 0)
    return next(equal, doubled)


def to_give_away(batch: Any) -> Any:
    """``batch`` for whoever may change it: a loss takes its labels out, and a step that is done again needs them.

    >>> batch = {"labels": 1}
    >>> to_give_away(batch).pop("labels"), batch
    (1, {'labels': 1})
    """
    return copy(batch) if isinstance(batch, (MutableMapping, list)) else batch


@dataclass
class MicroBatching:
    """The cut that is in use, as it stands in the checkpoint.

    Args:
        limit: Most samples in a piece, where the user gave a number.
        automatic: Whether an out-of-memory error leads to a finer cut.
    """

    limit: int | None = None
    automatic: bool = False
    #: Pieces that each batch is cut into, where they are found and not given.
    parts: int = 1
    #: Steps that fitted since the cut was last changed.
    good_steps: int = 0
    #: Steps that must fit before larger pieces are tried; doubles each time they do not.
    patience: int = 50
    #: Whether the present cut is such a try and no step has gone through with it yet.
    is_trying: bool = False

    def __post_init__(self) -> None:
        #: Whether anything is cut; asked in every step.
        self.is_on = self.automatic or self.limit is not None

    def parts_for(self, rows: int) -> int:
        """Into how many pieces a batch of ``rows`` samples is cut."""
        given = math.ceil(rows / self.limit) if self.limit else 1
        return min(max(given, self.parts), max(rows, 1))

    def refine(self, rows: int) -> bool:
        """Cut finer from now on; False if the batch that did not fit had one sample in each piece."""
        wanted = finer(rows, self.parts_for(rows))
        if wanted is None:
            return False
        if self.is_trying:
            self.patience = min(2 * self.patience, LONGEST_PATIENCE)
        self.parts, self.good_steps, self.is_trying = wanted, 0, False
        return True

    def fitted(self) -> None:
        """A step went through. After enough of them larger pieces are tried: what did not fit may have been rare."""
        self.is_trying = False
        if self.parts == 1:
            return
        self.good_steps += 1
        if self.good_steps >= self.patience:
            self.parts, self.good_steps, self.is_trying = self.parts // 2, 0, True

    def settle(self, rows: int) -> None:
        """Keep to the cut found for batches of ``rows`` samples: from now on an error is one."""
        self.limit, self.automatic = math.ceil(rows / self.parts_for(rows)), False
        self.parts = 1

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _REMEMBERED}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in _REMEMBERED:
            setattr(self, name, state[name])


LONGEST_PATIENCE = 10_000
_REMEMBERED = ("parts", "good_steps", "patience", "is_trying")
