"""How the learning rate moves."""

from dataclasses import dataclass

from trainwright.config.enums import SchedulerType


@dataclass(kw_only=True)
class ScheduleFields:
    lr_scheduler_type: SchedulerType | str = "linear"
    """Name of the learning-rate schedule."""

    lr_scheduler_kwargs: dict | str | None = None
    """Options of the schedule, as a dict or as JSON text."""

    warmup_steps: float = 0
    """Steps over which the learning rate climbs from zero; a number below 1 is a share of all steps."""
