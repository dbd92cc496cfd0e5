"""How the learning rate moves."""

from dataclasses import dataclass


@dataclass(kw_only=True)
class ScheduleFields:
    # Not the enum: HfArgumentParser would refuse registered names on a command line.
    lr_scheduler_type: str = "linear"
    """Name of the learning-rate schedule, ours or registered."""

    lr_scheduler_kwargs: dict | str | None = None
    """Options of the schedule, as a dict or as JSON text."""

    warmup_steps: float = 0
    """Steps over which the learning rate climbs from zero; a number below 1 is a share of all steps."""
