"""Versions of other packages with which no run is begun: they run code from files, or compute wrong numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from trainwright.config.deepspeed import stage_of
from trainwright.config.errors import ConfigError


def refuse_unsafe_transformers() -> None:
    """Refuse to load a model or tokenizer with a transformers that runs code which the model's files name.

    Before 5.3 it does so in every ``from_pretrained``, without ``trust_remote_code`` (CVE-2026-4372).
    """
    try:
        installed = version("transformers")
    except PackageNotFoundError:
        return
    if _numbers(installed) < (5, 3):
        raise ConfigError(
            f"transformers {installed} runs code that a model's files name, when they are loaded (CVE-2026-4372): "
            "pip install 'transformers>=5.3'."
        )


def refuse_wrong_gradients(installed: str, config: Mapping[str, Any], *, processes: int) -> None:
    """Refuse a version of DeepSpeed by name, where its gradients are known to be wrong.

    >>> two = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    >>> refuse_wrong_gradients("0.19.6", two, processes=2)
    >>> refuse_wrong_gradients("0.19.3", two, processes=2)
    Traceback (most recent call last):
    trainwright.config.errors.ConfigError: DeepSpeed 0.19.3 computes wrong gradients with stage 2 and bf16, ...
    """
    numbers, stage = _numbers(installed), stage_of(config)
    if numbers < (0, 19):
        raise ConfigError(f"DeepSpeed {installed} is too old: pip install 'deepspeed>=0.19.6'.")
    if processes == 1:
        return
    # Its issue 8224, present from 0.18.3 on; the repair (8245) was proposed the day after 0.19.5 came out. What
    # triggers it cannot be seen before a model runs, so all models are refused.
    if numbers < (0, 19, 6) and stage == 2 and config["bf16"]["enabled"]:
        raise ConfigError(
            f"DeepSpeed {installed} computes wrong gradients with stage 2 and bf16, if a part of the model runs twice "
            "in a step (its issue 8224): pip install 'deepspeed>=0.19.6', or use stage 1 or 3, or bf16=False."
        )
    # Measured: gradients of the processes are not averaged, for any model.
    if numbers < (0, 19, 8) and stage < 3 and config["zero_optimization"].get("contiguous_gradients") is False:
        raise ConfigError(
            f"DeepSpeed {installed} computes wrong gradients with zero_optimization.contiguous_gradients=false: leave "
            "it out, or pip install 'deepspeed>=0.19.8'."
        )


def _numbers(installed: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", installed.partition("+")[0])[:3])
