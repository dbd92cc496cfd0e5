"""What differs in the Trainer's arguments where two groups of processes share a training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.compat.accmt.asynchronous.groups import Group
from trainwright.compat.accmt.cadence import number_and_unit

if TYPE_CHECKING:
    from trainwright.compat.accmt.settings import Settings


def set_for_two_groups(settings: Settings, group: Group | None) -> Group | None:
    """Refuse what follows evaluations, which come later than the steps they are of; say the rest in other words."""
    if group is None:
        return None
    if settings.later.patience is not None:
        raise ValueError(
            "patience ends a training by its evaluations, which come later here than the steps they are of: use "
            "launch, or leave it out."
        )
    if settings.checkpoint_every is not None:
        settings.checkpoint_every = without_evaluations(settings.checkpoint_every, settings.evaluate_every_n_steps)
    if not group.trains:
        # Its run directory is not the training's: it logs nothing, and saves no checkpoint.
        settings.checkpoint = str(group.folder / "evaluation")
    return group


def without_evaluations(cadence: str, evaluate_every: int | None) -> str:
    """A rhythm in evaluations, in the steps or epochs that these are apart.

    >>> without_evaluations("2 evals", 5), without_evaluations("eval", None), without_evaluations("3 ep", 5)
    ('10 steps', '1 epochs', '3 ep')
    """
    number, unit = number_and_unit(cadence)
    if unit != "eval":
        return cadence
    return f"{number} epochs" if evaluate_every is None else f"{number * evaluate_every} steps"
