"""Turn what the runs observed into facts: the same everywhere, or the first difference and how large it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from trainwright.trying.plan import WEIGHTS
from trainwright.trying.running import Ran, last_lines

#: Losses closer than this share of their size differ by the order of additions, not by what is computed.
ROUNDING = 1e-5
#: A machine on which the same steps take so much longer at times is busy with something else.
_NOISY = 1.6


@dataclass(frozen=True)
class Difference:
    """Where two series of losses part."""

    step: int
    first: float
    second: float


def speed(straight: Ran, others: list[Ran]) -> dict[str, Any]:
    """How fast a library was, what it needed, and by how much a save delayed it.

    Whatever else the machine does only makes steps slower, so the quickest quarter of them says most. ``others`` are
    further runs of the same script at another time, which tell how much that changes.
    """
    facts = straight.observed
    usual, delays = zip(*(_steps(ran) for ran in [straight, *others]), strict=True)
    pooled = [seconds for one in usual for seconds in one]
    typical = _quartiles(pooled)[0] if pooled else None
    ends = {int(step): moment for step, moment in facts["ends"].items()}
    delayed = [seconds for one in delays for seconds in one]
    return {
        "samples_per_second": _rate(facts.get("samples", {}), typical),
        "tokens_per_second": _rate(facts.get("tokens", {}), typical),
        "step_seconds": typical,
        "step_seconds_of_runs": [_quartiles(one)[0] for one in usual if one],
        "step_seconds_quartiles": _quartiles(pooled),
        "first_step_seconds": min(ends.values()) - facts["train_called"] if ends else None,
        "save_delay_seconds": max(0.0, min(delayed)) if delayed else None,
        "train_seconds": facts["train_returned"] - facts["train_called"],
        "saves": len(facts["saves"]),
        "peak_memory_bytes": facts.get("peak_rss"),
        "peak_gpu_memory_bytes": facts.get("peak_cuda"),
    }


def _steps(ran: Ran) -> tuple[list[float], list[float]]:
    """Seconds of each step that does not follow a save, and by how much each save delayed the steps up to the next."""
    ends = {int(step): moment for step, moment in ran.observed["ends"].items()}
    saves = [step for step in ran.observed["saves"] if step + 1 in ends]
    took = {step: ends[step] - ends[step - 1] for step in ends if step - 1 in ends}
    usual = [seconds for step, seconds in took.items() if step - 1 not in saves] or list(took.values())
    untouched = [seconds for step, seconds in took.items() if saves and step <= saves[0]] or usual
    delays = []
    for save, following in zip(saves, [*saves[1:], max(ends)], strict=True):
        # A save in the background slows several steps down; all of that counts.
        delays.append(sum(took[step] - median(untouched) for step in range(save + 1, following + 1)))
    return usual, delays


def _rate(counts: dict[str, int], typical: float | None) -> float | None:
    values = [count for count in counts.values() if count]
    return sum(values) / len(values) / typical if values and typical else None


def _quartiles(values: list[float]) -> list[float]:
    if len(values) < 2:
        return values * 2
    low, _, high = quantiles(values, n=4, method="inclusive")
    return [low, high]


def is_noisy(*speeds: dict[str, Any]) -> bool:
    """Return True when steps, or runs, of one library took times so different that libraries cannot be compared."""
    for one in speeds:
        low, high = one["step_seconds_quartiles"] or (1.0, 1.0)
        runs = one["step_seconds_of_runs"] or [1.0]
        if high > _NOISY * low or max(runs) > _NOISY * min(runs):
            return True
    return False


def within_noise(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Return True when neither library was faster in all of its runs."""
    one, other = first["step_seconds_of_runs"], second["step_seconds_of_runs"]
    return bool(one and other) and min(one) <= max(other) and min(other) <= max(one)


def first_difference(first: dict[int, float], second: dict[int, float]) -> Difference | None:
    """The first step that both have, and whose losses are not the same bits."""
    for step in sorted(first.keys() & second.keys()):
        if not same(first[step], second[step]):
            return Difference(step, first[step], second[step])
    return None


def same(first: float, second: float) -> bool:
    """Return True for equal numbers, and for NaN twice."""
    return first == second or (math.isnan(first) and math.isnan(second))


def largest_difference(first: dict[int, float], second: dict[int, float]) -> float:
    """The largest difference between losses of the same step; infinite where one of them is not a number."""
    pairs = [(first[step], second[step]) for step in first.keys() & second.keys()]
    gaps = [abs(one - other) for one, other in pairs if not same(one, other)]
    return max((math.inf if math.isnan(gap) else gap for gap in gaps), default=0.0)


def only_rounding(first: dict[int, float], second: dict[int, float]) -> bool:
    """Return True when no loss differs by more than the order of additions explains."""
    return all(
        same(first[step], second[step]) or abs(first[step] - second[step]) <= ROUNDING * abs(first[step])
        for step in first.keys() & second.keys()
    )


def weights_difference(first: Ran, second: Ran) -> float | None:
    """The largest difference between final weights: 0 for the same bits, None where they are not the same tensors."""
    import torch
    from safetensors import safe_open

    paths = [Path(ran.plan.folder) / WEIGHTS for ran in (first, second)]
    if not all(path.is_file() for path in paths):
        return None
    largest = 0.0
    with safe_open(paths[0], "pt") as one, safe_open(paths[1], "pt") as other:
        if set(one.keys()) != set(other.keys()):
            return None
        for name in one.keys():  # noqa: SIM118  (it is no dict)
            left, right = one.get_tensor(name), other.get_tensor(name)
            if left.shape != right.shape:
                return None
            if not torch.equal(left, right):
                gap = (left.double() - right.double()).abs().max().item()
                largest = max(largest, math.inf if math.isnan(gap) else gap)
    return largest


def resumed_like(straight: Ran, killed: Ran, resumed: Ran | None) -> dict[str, Any]:
    """Whether a run that was killed and resumed equals the one that was left alone."""
    found: dict[str, Any] = {"killed_after_step": max(map(int, killed.observed.get("ends", {})), default=0)}
    if resumed is None:
        return found | {"resumed": False, "equal": False}
    before = first_difference(straight.losses, killed.losses)
    after = first_difference(straight.losses, resumed.losses)
    weights = weights_difference(straight, resumed) if resumed.trained else None
    if not resumed.trained:
        found["error"] = last_lines(resumed)
    return found | {
        "resumed": resumed.trained,
        "resumed_from_step": resumed.observed.get("start_step"),
        # The same command twice gave other losses before anything was killed: chance, not the resume.
        "repeatable": before is None,
        "first_different_step": after.step if after else None,
        "largest_loss_difference": largest_difference(straight.losses, resumed.losses),
        "largest_weight_difference": weights,
        "equal": resumed.trained and after is None and weights == 0.0,
    }
