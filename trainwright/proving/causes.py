"""What a failure usually means: where in the network it begins, or what the loss is divided by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from trainwright.engines.torch.targets import IGNORED, find_labels, shifts_labels
from trainwright.proving.copies import TrainerCopy
from trainwright.proving.material import UPDATES
from trainwright.proving.record import Record, compare
from trainwright.proving.stage import Stage, Way

#: From which share on outputs of a layer differ by more than rounding.
_DIFFERENT = {torch.float64: 1e-7, torch.float32: 1e-3}

Outputs = dict[str, list[Tensor]]
#: Puts the outputs of a layer in a step's passes into the form of those in the plain step's one pass, if it can.
Aligned = Callable[[list[Tensor], Tensor], Tensor | None]


def factor_of(found: Record, expected: Record) -> float | None:
    """The one number by which all gradients of the first step are larger than they should be, if there is one."""
    if not found.gradients or not expected.gradients:
        return None
    ours, theirs = found.gradients[0], expected.gradients[0]
    names = [name for name in theirs if name in ours and ours[name].shape == theirs[name].shape]
    if not names:
        return None
    product = sum(float((ours[name] * theirs[name]).sum()) for name in names)
    square = sum(float((theirs[name] ** 2).sum()) for name in names)
    if not square or not math.isfinite(product):
        return None
    factor = product / square
    left = math.hypot(*(float((ours[name] - factor * theirs[name]).norm()) for name in names))
    is_one_factor = left < 1e-5 * abs(factor) * math.sqrt(square)
    return factor if is_one_factor and abs(factor - 1) > 1e-3 else None


def joined(passes: list[Tensor], plain: Tensor) -> Tensor | None:
    """Outputs for pieces of a batch, one after the other."""
    if any(one.shape[1:] != plain.shape[1:] or not one.ndim for one in passes):
        return None
    found = torch.cat(passes)
    return found if found.shape == plain.shape else None


def without_padding(passes: list[Tensor], plain: Tensor, *, count: int, left: bool) -> Tensor | None:
    """Outputs at positions that were there before the padding."""
    (padded,) = passes
    if padded.ndim < 2 or padded.ndim != plain.ndim or padded.shape[0] != plain.shape[0]:
        return None
    if padded.shape == plain.shape:
        return padded
    if padded.shape[1] != plain.shape[1] + count:
        return None
    found = padded[:, count:] if left else padded[:, : plain.shape[1]]
    return found if found.shape == plain.shape else None


def said_of_samples(stage: Stage, way: Way, passes: int) -> str:
    """Where samples that run together influence each other, or that it is the loss."""
    found = first_different_layer(stage, way, passes, joined)
    if found.layer is not None:
        return said_of_layer(found.name, found.layer)
    if _agrees_with_shifted_labels(stage, way):
        return SAID_OF_SHIFTED_LABELS
    return SAID_OF_LOSS if found.compared else SAID_OF_LOSS_OR_LAYER


def _agrees_with_shifted_labels(stage: Stage, way: Way) -> bool:
    """Whether nothing is wrong where the first label of each row is not counted."""
    batches = [batch for update in stage.material.batches() for batch in update]
    labels = [find_labels(batch) for batch in batches]
    may_shift = all(isinstance(one, Tensor) and one.ndim == 2 and not one.is_floating_point() for one in labels)
    if not may_shift or shifts_labels(stage.source.model):
        return False
    plain, found = (stage.train(replace(one, look=_counting_shifted)) for one in (Way(), way))
    deviation, share = compare(found, plain), stage.allowed().share
    # In several processes losses are exchanged in another format; gradients say enough.
    return deviation.gradient is not None and deviation.gradient <= share


@contextmanager
def _counting_shifted(copy: TrainerCopy) -> Iterator[None]:
    copy.trainer.count_targets = lambda batch: int((find_labels(batch)[:, 1:] != IGNORED).sum())
    yield


@dataclass(frozen=True)
class Search:
    """The first layer that puts out something else, None where none does; and how many were compared."""

    compared: int
    name: str = ""
    layer: nn.Module | None = None


def first_different_layer(stage: Stage, way: Way, passes: int, aligned: Aligned) -> Search:
    """Compare what layers put out for the same samples, in the order in which they end."""
    plain_outputs: Outputs = {}
    outputs: Outputs = {}
    kinds: dict[str, nn.Module] = {}
    stage.train(replace(Way(), look=partial(_watched, plain_outputs, kinds)))
    stage.train(replace(way, look=partial(_watched, outputs, kinds)))
    compared = 0
    for name in plain_outputs:
        calls = len(plain_outputs[name]) // UPDATES
        for call in range(calls):
            of_passes = outputs.get(name, [])[call : passes * calls : calls]
            found = aligned(of_passes, plain_outputs[name][call]) if len(of_passes) == passes else None
            compared += found is not None
            if found is not None and _differ(found, plain_outputs[name][call], stage.dtype):
                return Search(compared, name, kinds[name])
    return Search(compared)


def _watched(outputs: Outputs, kinds: dict[str, nn.Module], copy: TrainerCopy) -> AbstractContextManager[None]:
    return _watching(copy.setup.model, outputs, kinds)


@contextmanager
def _watching(model: nn.Module, outputs: Outputs, kinds: dict[str, nn.Module]) -> Iterator[None]:
    """Within it what each layer puts out is noted, in the order in which they end."""
    handles = []
    for name, module in model.named_modules():
        if name:
            kinds[name] = module
            handles.append(module.register_forward_hook(partial(_note, outputs.setdefault, name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _note(
    place: Callable[[str, list[Tensor]], list[Tensor]], name: str, module: nn.Module, args: object, output: object
) -> None:
    leaves = torch.utils._pytree.tree_leaves(dict(output) if isinstance(output, dict) else output)
    found = [one for one in leaves if isinstance(one, Tensor) and one.is_floating_point() and one.ndim > 1]
    if found:
        place(name, []).append(found[0].detach().clone())


def _differ(one: Tensor, other: Tensor, dtype: torch.dtype) -> bool:
    size = float(other.norm())
    distance = float((one - other).norm())
    return math.isfinite(size) and not distance <= _DIFFERENT[dtype] * max(size, 1e-30)


def said_of_layer(name: str, module: nn.Module) -> str:
    """One sentence about a layer in which samples meet."""
    kind = type(module).__name__
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return (
            f"samples influence each other in {name} ({kind}): it takes its statistics from the samples that run "
            "together. LayerNorm and GroupNorm do not; with BatchNorm a batch that is cut is another batch."
        )
    return (
        f"samples influence each other in {name} ({kind}): what it puts out for one depends on those that run with it."
    )


def said_of_factor(factor: float, divisor: str) -> str:
    return (
        f"every gradient is {factor:.4g} times what it should be: the loss is divided by {divisor}, and the Trainer "
        "weighs it, too. Return the mean over the batch that compute_loss is given."
    )


SAID_OF_LOSS = (
    "each layer puts out the same for each sample, so it is the loss: it divides by the number of samples, or of "
    "positions, and not by that of its targets (labels that are not -100), or it compares samples with each other. "
    "Return the mean over the targets, or override count_targets to say what it is a mean over (where it "
    "shifts labels, all but the first of each row)."
)
SAID_OF_SHIFTED_LABELS = (
    "the loss is a mean over shifted targets (it compares position i with label i + 1), and the Trainer weighs "
    "batches by all labels, the first of each row included. Say shifts_labels = True in the class of the model, or "
    'override count_targets(inputs) in the Trainer: return (inputs["labels"][:, 1:] != -100).sum(). '
    "With it this row passes."
)
SAID_OF_LOSS_OR_LAYER = (
    "either samples influence each other (BatchNorm, a mean over the batch), or the loss divides by the number of "
    "samples, or of positions, and not by that of its targets (labels that are not -100)."
)
