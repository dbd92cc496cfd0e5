"""From model outputs to a loss: the model's own, a smoothed one, or the plain choice for bare logits."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trainwright.engines.torch.targets import IGNORED, is_mapping


def loss_of(outputs: Any, labels: Any, inputs: Any) -> Tensor:
    """The loss in ``outputs``; where a model returns only logits, cross-entropy or mean squared error with labels."""
    if is_mapping(outputs):
        if "loss" in outputs and outputs["loss"] is not None:
            return outputs["loss"]
        if labels is not None:
            return default_loss(logits_of(outputs), labels)
        raise ValueError(_no_loss(list(outputs), inputs))
    if type(outputs) is not Tensor and dataclasses.is_dataclass(outputs) and not isinstance(outputs, type):
        return loss_of({f.name: getattr(outputs, f.name) for f in dataclasses.fields(outputs)}, labels, inputs)
    first = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
    if isinstance(first, Tensor) and first.ndim == 0:
        return first
    if isinstance(first, Tensor) and labels is not None:
        return default_loss(first, labels)
    raise ValueError(_no_loss([type(outputs).__name__], inputs))


def logits_of(outputs: Any) -> Tensor:
    """The main prediction among a model's outputs."""
    if isinstance(outputs, Tensor):
        return outputs
    if is_mapping(outputs):
        if "logits" in outputs:
            return outputs["logits"]
        return next(value for name, value in outputs.items() if name != "loss" and isinstance(value, Tensor))
    if isinstance(outputs, (tuple, list)):
        return outputs[0] if outputs[0].ndim else outputs[1]
    return logits_of({f.name: getattr(outputs, f.name) for f in dataclasses.fields(outputs)})


def default_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy for integer labels (-100 ignored), mean squared error for real ones."""
    if labels.is_floating_point():
        return F.mse_loss(logits.reshape(labels.shape), labels)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=IGNORED)


def mean_squared_error(outputs: object, labels: Tensor) -> Tensor:
    """The mean of squared differences."""
    return F.mse_loss(_in_shape_of(labels, outputs), labels)


def mean_absolute_error(outputs: object, labels: Tensor) -> Tensor:
    """The mean of differences: outliers weigh no more than others."""
    return F.l1_loss(_in_shape_of(labels, outputs), labels)


def huber(outputs: object, labels: Tensor, delta: float = 1.0) -> Tensor:
    """Squared differences up to ``delta``, and plain ones beyond."""
    return F.huber_loss(_in_shape_of(labels, outputs), labels, delta=delta)


def _in_shape_of(labels: Tensor, outputs: object) -> Tensor:
    """Outputs with the shape of the numbers that they are compared with."""
    found = logits_of(outputs)
    if found.numel() != labels.numel():
        raise ValueError(
            f"Outputs of shape {tuple(found.shape)} cannot be compared one by one with labels of shape "
            f"{tuple(labels.shape)}: this loss is for numbers. For classes take 'cross_entropy'."
        )
    return found.reshape(labels.shape)


def smoothed_loss(logits: Tensor, labels: Tensor, epsilon: float, *, shift: bool) -> Tensor:
    """Mean label-smoothed cross-entropy over the targets that are not ignored."""
    if shift:
        logits, labels = logits[..., :-1, :], labels[..., 1:]
    log_probabilities = F.log_softmax(logits.float() if logits.dtype in _HALF else logits, dim=-1)
    ignored = labels == IGNORED
    index = labels.clamp(min=0).unsqueeze(-1)
    nll = -log_probabilities.gather(-1, index).squeeze(-1).masked_fill(ignored, 0.0)
    uniform = -log_probabilities.mean(dim=-1).masked_fill(ignored, 0.0)
    return ((1 - epsilon) * nll + epsilon * uniform).sum() / (~ignored).sum()


_HALF = (torch.float16, torch.bfloat16)


def _no_loss(names: list[str], inputs: Any) -> str:
    given = ", ".join(inputs) if is_mapping(inputs) else type(inputs).__name__
    return (
        f"The model returned no loss, only: {', '.join(names)}. It was given: {given}. Give the batch 'labels', "
        "pass compute_loss_func= to the Trainer, or override compute_loss."
    )
