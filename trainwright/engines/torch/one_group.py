"""Step an optimizer whose groups have the same settings as if they were one: one call of its kernel.

Parameters with and without decay are always two groups, so that decay can be changed while a run goes on. As long as it
is 0 they are updated alike.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Adam, AdamW

from trainwright.engines.torch.direct_step import clear_directly, step_directly

#: Those that write nothing into their groups: others (schedule-free ones) count their steps there.
_KNOWN = (Adam, AdamW)


def step_as_one(optimizer: Any) -> None:
    """Step ``optimizer``; where that gives the same bits, all parameters at once."""
    if step_directly(optimizer):
        return
    groups = optimizer.param_groups
    if not _may_be_one(optimizer, groups):
        optimizer.step()
        return
    optimizer.param_groups = [{**groups[0], "params": [one for group in groups for one in group["params"]]}]
    try:
        optimizer.step()
    finally:
        optimizer.param_groups = groups


def clear_gradients_of(optimizer: Any, options: dict[str, Any]) -> None:
    """``optimizer.zero_grad(**options)``, by the short way where that is the same."""
    if options or not clear_directly(optimizer):
        optimizer.zero_grad(**options)


def _may_be_one(optimizer: Any, groups: list[dict[str, Any]]) -> bool:
    if type(optimizer) not in _KNOWN or len(groups) < 2:
        return False
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        # Somebody may look at the groups during the step.
        return False
    first = groups[0]
    for group in groups[1:]:
        for name in group:
            if name not in first:
                return False
            one, other = first[name], group[name]
            # Comparing numbers on a GPU would wait for it.
            if one is not other and name != "params" and (isinstance(one, Tensor) or one != other):
                return False
    return True
