"""Parameter groups of an optimizer that a recipe means."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from trainwright.core.modifier import Site


def chosen_groups(site: Site, wanted: list[int] | None) -> list[dict[str, Any]]:
    """Groups by number; all for None."""
    groups = site.optimizer.param_groups
    if wanted is None:
        return groups
    for number in wanted:
        if not isinstance(number, int) or not -len(groups) <= number < len(groups):
            raise ValueError(f"param_groups: the optimizer has {len(groups)} groups, numbered from 0; not {number!r}.")
    return [groups[number] for number in wanted]


def set_in(group: dict[str, Any], name: str, value: float) -> None:
    """Write a setting; compiled and capturable optimizers keep it in a tensor, which stays the same one."""
    if isinstance(group[name], Tensor):
        group[name].fill_(value)
    else:
        group[name] = value
