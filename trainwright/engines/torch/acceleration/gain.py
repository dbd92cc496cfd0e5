"""What accelerations bring: one pass over the first batch in the plain way and in theirs. Measured, never chosen by."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from trainwright.engines.torch.acceleration.proof import Passes, scalar_of, trained, without_hooks
from trainwright.engines.torch.acceleration.undisturbed import undisturbed
from trainwright.engines.torch.memory import is_out_of_memory, release_memory


@dataclass(frozen=True)
class Cost:
    """Of forward and backward over one batch."""

    seconds: float
    #: Most bytes that tensors took on the GPU, weights included; None elsewhere.
    bytes: int | None = None

    def __str__(self) -> str:
        memory = "" if self.bytes is None else f" and {self.bytes / 1e9:.1f} GB"
        return f"{self.seconds * 1e3:,.3g} ms{memory}" if self.seconds < 1 else f"{self.seconds:,.2f} s{memory}"


@dataclass(frozen=True)
class Gain:
    """The same pass in both ways."""

    accelerated: Cost
    #: None: it does not fit into memory.
    plain: Cost | None

    def __str__(self) -> str:
        """
        >>> print(Gain(Cost(0.2, 4_000_000_000), Cost(0.4, 9_000_000_000)))
        Forward and backward of that batch took 200 ms and 4.0 GB, in the plain way 400 ms and 9.0 GB.
        """
        plain = "it does not fit into memory" if self.plain is None else str(self.plain)
        return f"Forward and backward of that batch took {self.accelerated}, in the plain way {plain}."

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def cost_of(passes: Passes) -> Cost:
    """Compute what a step computes, all of it, and keep none of it."""
    device = next(passes.network.parameters()).device
    on_gpu = device.type == "cuda"
    call, weights = passes.call.copied(None), [one for _, one in trained(passes.network)]
    with undisturbed(passes.network):
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(device)
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        with passes.autocast():
            loss = scalar_of(without_hooks(passes.network)(*call.args, **call.kwargs))
        torch.autograd.grad(loss, weights, allow_unused=True)
        if on_gpu:
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - start
        return Cost(seconds, torch.cuda.max_memory_allocated(device) if on_gpu else None)


def plain_cost_of(passes: Passes) -> Cost | None:
    """The same where it may not fit: None if it does not."""
    device = next(passes.network.parameters()).device
    try:
        return cost_of(passes)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    finally:
        release_memory(device)
        if device.type == "cuda":
            # What the plain way takes is not what this training takes.
            torch.cuda.reset_peak_memory_stats(device)
    return None
