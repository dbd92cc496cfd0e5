"""What ``accelerate launch`` says in the environment beyond where the processes are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainwright.config.warnings import warn

if TYPE_CHECKING:
    from trainwright.config.fields import AllFields

#: Only the command sets this one; the others are also left behind by accelerate's objects in the same process.
_SIGN = "ACCELERATE_DYNAMO_USE_FULLGRAPH"
_PLANS = {
    "ACCELERATE_USE_FSDP": ("FSDP", "fsdp=..."),
    "ACCELERATE_USE_DEEPSPEED": ("DeepSpeed", "deepspeed=..."),
    "ACCELERATE_USE_MEGATRON_LM": ("Megatron-LM", "another way of spreading it"),
    "ACCELERATE_USE_PARALLELISM_CONFIG": ("a parallelism_config", "the arguments of the Trainer"),
}


def warn_of_accelerate_settings(args: AllFields, environment: Mapping[str, str] = os.environ) -> None:
    """accelerate's own configuration is not read: say what it asks for that ``args`` does not."""
    if _SIGN not in environment:
        return
    for name, (plan, instead) in _PLANS.items():
        is_said = bool(getattr(args, "fsdp", None) or getattr(args, "deepspeed", None))
        if environment.get(name, "").lower() == "true" and not is_said:
            warn(f"accelerate launch asks for {plan}, and its configuration is not read: say {instead} instead.")
    precision = environment.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision in ("bf16", "fp16") and not getattr(args, precision):
        warn(f"accelerate launch asks for {precision}, and its configuration is not read: say {precision}=True.")
