"""Why losses of the two libraries differ: what was observed, and a short run of both without dropout, decide."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from trainwright.trying.compare import Difference, first_difference, only_rounding
from trainwright.trying.running import Ran

_PAGE = "docs/try.md"
_RIGHT = "docs/coming-from-hugging-face.md#right-where-it-was-wrong"
_REPORT = f"{_PAGE}#what-to-report"
#: Of an update whose gradients were added in another order.
_SAME_WEIGHTS = 1e-4


@dataclass(frozen=True)
class Cause:
    """A reason, where it is explained, and whether the difference is what one has to expect."""

    name: str
    text: str
    page: str
    #: True where the two compute the same, and chance or rounding makes the difference.
    harmless: bool = False


def other_gradients(theirs: Ran, ours: Ran) -> Cause | None:
    """What equal losses hide where steps are too small, or clipped, to show it: gradients of another size."""
    first, second = theirs.gradient_norms, ours.gradient_norms
    for step in sorted(first.keys() & second.keys()):
        if not math.isclose(first[step], second[step], rel_tol=1e-3, abs_tol=1e-6):
            return Cause(
                "gradients",
                f"the losses agree, but the gradients do not: their norm in step {step} is {first[step]:.6g} with "
                f"transformers and {second[step]:.6g} here. A compute_loss or training_step of the script's own scales "
                "them by something that the two count differently (num_items_in_batch, accumulation).",
                "docs/coming-from-hugging-face.md#a-loss-scaled-by-yourself",
            )
    return None


def other_weights(largest: float | None) -> Cause | None:
    """What equal losses hide as well: something that happens to the weights after the last of them."""
    if largest is not None and largest <= _SAME_WEIGHTS:
        return None
    size = "they are not the same tensors" if largest is None else f"they differ by up to {largest:.1e}"
    return Cause(
        "weights",
        f"the losses agree, but the weights at the end do not: {size}. The script, or one of its callbacks, changes "
        "them after the last step in another way with each library.",
        _REPORT,
    )


def cause_before_probing(theirs: Ran, ours: Ran, killed: Ran, difference: Difference) -> Cause | None:
    """What the runs themselves tell; None where a closer look is needed."""
    if theirs.observed.get("weights") != ours.observed.get("weights"):
        return Cause(
            "initial weights",
            "the two runs began with different weights, so their losses cannot be compared: the script draws them in a "
            "way that no seed fixes. Call set_seed(...) before it builds the model.",
            f"{_PAGE}#initial-weights",
        )
    if first_difference(theirs.losses, killed.losses) is not None:
        return Cause(
            "not repeatable",
            "transformers itself gives other losses when the script runs twice, so step by step nothing can be "
            "compared. Something draws numbers without a seed, or the device has no way to add in the same order each "
            "time.",
            f"{_PAGE}#not-repeatable",
        )
    step = _first_other_batch(theirs.observed, ours.observed)
    if step is not None and step <= difference.step:
        return Cause(
            "data",
            f"from step {step} on the batches hold other numbers. Samples come in the same order in both; what a "
            "dataset or collator draws at random (masks, augmentation) follows from seed, epoch and sample here, and "
            "from the state of one global generator in transformers.",
            "docs/reliability.md#what-continues-exactly",
            harmless=True,
        )
    if only_rounding(theirs.losses, ours.losses):
        return other_gradients(theirs, ours) or Cause(
            "rounding",
            "the same numbers are added in another order; no loss differs by more than 0.001 %.",
            f"{_PAGE}#rounding",
            harmless=True,
        )
    return None


def cause_from_probes(ours: Ran, their_probe: Ran, our_probe: Ran) -> Cause | None:
    """What a short run of both without dropout tells; None where that is not enough."""
    if not (their_probe.trained and our_probe.trained):
        return None
    if only_rounding(their_probe.losses, our_probe.losses):
        return other_gradients(their_probe, our_probe) or Cause(
            "dropout",
            "dropout draws other random numbers, so losses cannot be compared step by step. With dropout off, both "
            "gave the same losses.",
            f"{_PAGE}#dropout",
            harmless=True,
        )
    own, pieces = _own_loss(our_probe.observed.get("own_loss")), ours.observed["accumulation"]
    their_loss, our_loss = (_first_loss(probe) for probe in (their_probe, our_probe))
    if own is None or not _close(our_loss, own) or not _close(their_loss, pieces * own) or pieces == 1:
        return _other_count(their_probe, our_probe) if pieces == 1 else None
    return Cause(
        "gradient accumulation",
        f"{_numbers(own, their_loss, our_loss)} With gradient_accumulation_steps={pieces} transformers adds the losses "
        f"of a step's batches up instead of averaging them, for this model: its loss and its gradient are {pieces} "
        "times as large.",
        _RIGHT,
    )


def cause_from_single_batches(ours: Ran, their_probe: Ran, our_probe: Ran) -> Cause | None:
    """What a short run of both with one batch a step tells, where several are accumulated otherwise."""
    if not (their_probe.trained and our_probe.trained):
        return None
    if not only_rounding(their_probe.losses, our_probe.losses):
        return _other_count(their_probe, our_probe)
    return Cause(
        "gradient accumulation",
        "with gradient_accumulation_steps=1, and without dropout, both gave the same losses; with "
        f"{ours.observed['accumulation']} transformers adds the batches of a step up in its own way, and here each "
        "counts by its number of targets. That is the mean over the whole step where the loss is a mean over targets; "
        "for a mean over something else, such as one with class weights, override count_targets.",
        _RIGHT,
    )


def _other_count(their_probe: Ran, our_probe: Ran) -> Cause | None:
    """Where one batch a step gives another loss: a mean over another number of targets than the model's own."""
    own, their_loss, our_loss = (
        _own_loss(our_probe.observed.get("own_loss")),
        _first_loss(their_probe),
        _first_loss(our_probe),
    )
    if own is None or not _close(our_loss, own) or _close(their_loss, our_loss):
        return None
    return Cause(
        "loss normalisation",
        f"{_numbers(own, their_loss, our_loss)} transformers divides the sum of this model's losses by another count "
        "of targets than the model does: it counts labels that the model shifts away.",
        _RIGHT,
    )


def _numbers(own: float, theirs: float, ours: float) -> str:
    return (
        f"without dropout the model's own mean loss of step 1 is {own:.6g}; transformers counts {theirs:.6g}, "
        f"trainwright {ours:.6g}."
    )


def unknown(their_probe: Ran, our_probe: Ran) -> Cause:
    """Nothing that we know of."""
    if not (their_probe.trained and our_probe.trained):
        words = "the short run that should tell why has failed"
    else:
        first, second = (_first_loss(probe) for probe in (their_probe, our_probe))
        words = f"without dropout they differ as well: step 1 has {first:.6g} there and {second:.6g} here"
    return Cause("unknown", f"we do not know; {words}. Please report it, with this script.", _REPORT)


def _first_loss(ran: Ran) -> float:
    return ran.losses[min(ran.losses)] if ran.losses else 0.0


def _close(first: float, second: float) -> bool:
    return abs(first - second) <= 1e-4 * abs(second)


def _own_loss(found: list[Any] | None) -> float | None:
    if not found or any(one is None for one in found):
        return None
    targets = sum(count for _, count in found)
    return sum(loss * count for loss, count in found) / targets if targets else None


def _first_other_batch(theirs: dict[str, Any], ours: dict[str, Any]) -> int | None:
    steps = theirs["batches"].keys() & ours["batches"].keys()
    return min((int(step) for step in steps if theirs["batches"][step] != ours["batches"][step]), default=None)
