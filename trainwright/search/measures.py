"""What is known of a model without training it: parameters, operations, and how long an answer takes here."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from typing import Any

import torch

from trainwright.config.errors import ConfigError
from trainwright.engines.torch.targets import base_model
from trainwright.experiment.building import Built
from trainwright.proving.copies import random_numbers_put_back

_WARM_UP, _RUNS = 5, 30


def measure(built: Built, wanted: Iterable[str]) -> dict[str, float]:
    """The wanted ones of ``parameters``, ``flops`` (a training step's, of one sample) and ``latency_ms``."""
    wanted = set(wanted)
    found: dict[str, float] = {"parameters": float(sum(one.numel() for one in built.prepared.model.parameters()))}
    if "flops" in wanted:
        flops = built.trainer.summary().flops_per_sample
        if flops is None:
            raise ConfigError("search: flops cannot be counted for this model; leave them out, or use latency_ms.")
        found["flops"] = flops
    if "latency_ms" in wanted:
        found["latency_ms"] = _latency(built)
    return found


def _latency(built: Built) -> float:
    """Milliseconds from one sample to its answer, the median of several on this device."""
    trainer: Any = built.trainer
    model = base_model(trainer.model)
    was_training = model.training
    with random_numbers_put_back(), torch.no_grad():
        batch = trainer._prepare_inputs(trainer.data_collator([built.prepared.train[0]]))
        model.eval()
        try:
            times = [_timed(trainer, model, batch) for _ in range(_WARM_UP + _RUNS)][_WARM_UP:]
        finally:
            model.train(was_training)
    return statistics.median(times) * 1000


def _timed(trainer: Any, model: Any, batch: Any) -> float:
    start = time.perf_counter()
    trainer.compute_loss(model, dict(batch))
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start
