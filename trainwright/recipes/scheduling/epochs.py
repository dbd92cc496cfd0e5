"""How long a recipe runs."""

from __future__ import annotations

from trainwright.core.modifier import Modifier


class EpochRangeModifier(Modifier):
    """Says from when to when the recipe trains: its ``end_epoch`` is the number of epochs, if nothing ends later."""

    def __init__(self, *, start_epoch: float, end_epoch: float) -> None:
        super().__init__(start_epoch=start_epoch, end_epoch=end_epoch)
