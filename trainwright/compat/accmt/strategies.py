"""ACCMT's names of strategies (``--strat``), in the words of ``TrainingArguments``.

``ddp``, ``fsdp``, ``fsdp-cpu``, ``deepspeed-0`` to ``deepspeed-3``; each may be followed by ``-fp32`` or ``-bf16``, ddp
and stage 0 also by ``-fp16``, those of DeepSpeed also by ``-offload_opt`` and ``-offload_param``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from trainwright.config.registry import suggestion

#: How ``launch`` tells the processes it starts.
VARIABLE = "ACCMT_STRATEGY"
WAYS = ("ddp", "fsdp", "fsdp-cpu", "deepspeed-0", "deepspeed-1", "deepspeed-2", "deepspeed-3")
PRECISIONS = ("fp32", "bf16", "fp16")
#: fp16 scales losses, and where weights are in parts that is not offered. Stage 0 of DeepSpeed is ddp.
WITH_FP16 = ("ddp", "deepspeed-0")
OFFLOADS = ("offload_opt", "offload_param")


def names() -> list[str]:
    """Every name, as ``strats`` lists them."""
    endings = ("", "-fp32", "-bf16")
    found = [f"{way}{ending}" for way in WAYS for ending in (*endings, *(["-fp16"] if way in WITH_FP16 else []))]
    for stage in (1, 2, 3):
        offloads = ("-offload_opt", "-offload_opt-offload_param") if stage == 3 else ("-offload_opt",)
        found += [f"deepspeed-{stage}{ending}{offload}" for ending in endings for offload in offloads]
    return found


def settings_of(name: str) -> dict[str, Any]:
    """What ``TrainingArguments`` is told for a strategy.

    >>> settings_of("fsdp-cpu-bf16")
    {'backend': 'fsdp-bf16', 'fsdp_config': {'cpu_offload': True}}
    >>> settings_of("deepspeed-2")
    {'backend': 'deepspeed', 'deepspeed': {'zero_optimization': {'stage': 2}}}
    """
    # Also as people say it: deepspeed-zero2.
    words = name.replace("deepspeed-zero", "deepspeed-").replace("--", "-").split("-")
    offloads = [word for word in words if word in OFFLOADS]
    words = [word for word in words if word not in OFFLOADS]
    precision = words.pop() if words[-1] in (*PRECISIONS, "fp8") else None
    way = "-".join(words)
    if precision == "fp8":
        raise ValueError(f"--strat {name}: fp8 is not offered; the precisions are {', '.join(PRECISIONS)}.")
    if way not in WAYS:
        raise ValueError(f"--strat {name} is not one of {', '.join(WAYS)}{suggestion(way, WAYS)}.")
    if precision == "fp16" and way not in WITH_FP16:
        raise ValueError(f"--strat {name}: fp16 goes with {' and '.join(WITH_FP16)}; use {way}-bf16.")
    ending = "" if precision in (None, "fp32") else f"-{precision}"
    stage = int(way.removeprefix("deepspeed-")) if way.startswith("deepspeed") else 0
    if (offloads and stage == 0) or ("offload_param" in offloads and stage != 3):
        raise ValueError(f"--strat {name}: offload_opt goes with deepspeed-1 to 3, offload_param with deepspeed-3.")
    if way.startswith("fsdp"):
        config = {"fsdp_config": {"cpu_offload": True}} if way == "fsdp-cpu" else {}
        return {"backend": f"fsdp{ending}", **config}
    if stage == 0:
        # Stage 0 of DeepSpeed spreads nothing: it is what DDP does.
        return {"backend": f"ddp{ending}"}
    zero: dict[str, Any] = {"stage": stage}
    if "offload_opt" in offloads:
        zero["offload_optimizer"] = {"device": "cpu"}
    if "offload_param" in offloads:
        zero["offload_param"] = {"device": "cpu"}
    return {"backend": f"deepspeed{ending}", "deepspeed": {"zero_optimization": zero}}


def launched(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What ``launch --strat`` has told this process; nothing where it was started in another way."""
    name = environment.get(VARIABLE)
    return {} if not name else settings_of(name)
