"""Weight decay from a given epoch on."""

from __future__ import annotations

from trainwright.core.modifier import Modifier, Site
from trainwright.recipes.scheduling.groups import chosen_groups, set_in


class SetWeightDecayModifier(Modifier):
    """Sets ``weight_decay`` of the optimizer's groups when ``start_epoch`` comes.

    Without ``param_groups`` only groups that decay already are changed: biases and norms stay without.
    """

    def __init__(
        self,
        *,
        weight_decay: float,
        start_epoch: float = -1.0,
        param_groups: list[int] | None = None,
        end_epoch: float = -1.0,
        constant_logging: bool = False,
        log_types: object = "__ALL__",
    ) -> None:
        super().__init__(start_epoch=start_epoch, end_epoch=end_epoch)
        self.weight_decay = float(weight_decay)
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay={weight_decay} must not be negative.")
        self.param_groups = param_groups

    def begin(self, site: Site, epoch: float) -> None:
        groups = chosen_groups(site, self.param_groups)
        if not all("weight_decay" in group for group in groups):
            raise ValueError("SetWeightDecayModifier: this optimizer has no weight_decay; remove the modifier.")
        if self.param_groups is None and any(group["weight_decay"] for group in groups):
            groups = [group for group in groups if group["weight_decay"]]
        for group in groups:
            set_in(group, "weight_decay", self.weight_decay)
