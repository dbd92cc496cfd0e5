"""From the predictions of several members to one: combined, calibrated, and how sure it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

PREDICT = ("average", "vote", "stacked")
#: What members predict: one of several classes, or amounts.
KINDS = ("classes", "numbers")
_IGNORED = -100
_HIGHEST_LOG = math.log(20.0)
_GOLDEN = (math.sqrt(5) - 1) / 2


def combined(apart: Tensor, how: str, shares: Tensor) -> Tensor:
    """Logits of the common prediction from those of each member, which come first: (members, ..., classes).

    ``average`` is the mean of probabilities; ``stacked`` a mean weighted with ``shares``; ``vote`` counts one vote a
    member, and a tie goes to what is likelier on average.

    >>> apart = torch.log(torch.tensor([[[0.9, 0.1]], [[0.4, 0.6]], [[0.4, 0.6]]]))
    >>> even = torch.ones(3) / 3
    >>> combined(apart, "average", even).exp(), combined(apart, "vote", even).exp()
    (tensor([[0.5667, 0.4333]]), tensor([[0.3917, 0.6083]]))
    """
    logs = F.log_softmax(_full(apart), dim=-1)
    if how == "stacked":
        return torch.logsumexp(logs + shares.to(logs.dtype).log().reshape(-1, *[1] * (logs.ndim - 1)), dim=0)
    average = torch.logsumexp(logs, dim=0) - math.log(len(logs))
    if how == "average":
        return average
    votes = F.one_hot(logs.argmax(-1), logs.shape[-1]).sum(0)
    # With the mean probability as one more vote: no class is impossible, and no tie is left.
    return ((votes + average.exp()) / (len(logs) + 1)).log()


def mean_of_numbers(apart: Tensor, how: str, shares: Tensor) -> Tensor:
    """The common prediction of amounts."""
    if how == "average":
        return _full(apart).mean(0)
    return (_full(apart) * shares.to(_full(apart).dtype).reshape(-1, *[1] * (apart.ndim - 1))).sum(0)


def entropy_of(logits: Tensor) -> Tensor:
    """How unsure a prediction is, in nats: 0 where one class is certain."""
    logs = F.log_softmax(_full(logits), dim=-1)
    return -(logs.exp() * logs).sum(-1)


def disagreement_of(apart: Tensor) -> Tensor:
    """What of that comes from members that contradict each other: the mutual information of member and class."""
    logs = F.log_softmax(_full(apart), dim=-1)
    return (entropy_of(torch.logsumexp(logs, 0)) - entropy_of(apart).mean(0)).clamp(min=0.0)


def spread_of(apart: Tensor) -> Tensor:
    """How far apart members' amounts are: their standard deviation."""
    return _full(apart).std(0, correction=0)


def calibration_error(logits: Tensor, labels: Tensor, bins: int = 15) -> float:
    """ECE: how far confidence is from the share of right answers, over ``bins`` of equal width.

    >>> calibration_error(torch.tensor([[10.0, 0.0], [10.0, 0.0]]), torch.tensor([0, 1]))
    0.49995...
    """
    confidence, chosen = F.softmax(logits.double(), dim=-1).max(-1)
    right = (chosen == labels).double()
    place = (confidence * bins).long().clamp(max=bins - 1)
    gaps = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, confidence - right)
    return float(gaps.abs().sum() / max(len(labels), 1))


def fitted_temperature(logits: Tensor, labels: Tensor) -> float:
    """What logits are divided by so that the likelihood of ``labels`` is greatest; between 1/20 and 20."""

    def cost(log: float) -> float:
        return float(F.cross_entropy(logits.double() / math.exp(log), labels))

    low, high = -_HIGHEST_LOG, _HIGHEST_LOG
    # The cost has one valley: a golden section finds its lowest point, the same on every machine.
    for _ in range(60):
        one, other = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, other) if cost(one) <= cost(other) else (one, high)
    return math.exp((low + high) / 2)


def fitted_shares(apart: Tensor, labels: Tensor) -> Tensor:
    """The weights of members whose mixture makes ``labels`` likeliest, by expectation and maximization."""
    likely = F.log_softmax(apart.double(), dim=-1).gather(-1, labels.expand(len(apart), -1).unsqueeze(-1)).squeeze(-1)
    shares = torch.full((len(apart), 1), 1 / len(apart), dtype=torch.float64)
    for _ in range(200):
        shares = F.softmax(likely + shares.log(), dim=0).mean(1, keepdim=True).clamp(min=1e-6)
        shares = shares / shares.sum()
    return shares.squeeze(1)


def fitted_shares_of_numbers(apart: Tensor, labels: Tensor) -> Tensor:
    """The weights of members, 1 together, with which the squared error is least."""
    wrong = (apart.double() - labels.double().reshape(apart.shape[1:])).flatten(1)
    products = wrong @ wrong.T / max(wrong.shape[1], 1)
    # Members are alike: without it tiny differences would decide.
    products += torch.eye(len(apart), dtype=torch.float64) * products.diagonal().mean().clamp(min=1e-12) * 0.1
    shares = torch.linalg.solve(products, torch.ones(len(apart), dtype=torch.float64)).clamp(min=0.0)
    return shares / shares.sum()


@dataclass(frozen=True)
class Calibration:
    """What was fitted on one half of held-out samples, and what the other half says of it."""

    temperature: float
    shares: list[float]
    #: Calibration error of the other half, without and with it; None for amounts.
    ece_before: float | None
    ece_after: float | None
    #: Loss of the other half, without and with it.
    loss_before: float
    loss_after: float
    #: Held-out samples, both halves together.
    samples: int


def calibrated(apart: Tensor, labels: Tensor, how: str, kind: str) -> Calibration:
    """Fit shares (where ``how`` is stacked) and temperature on every second sample, and try them on the others."""
    count, even = apart.shape[1], torch.full((len(apart),), 1 / len(apart), dtype=torch.float64)
    if count < 4:
        raise ValueError(f"{count} held-out samples are too few to calibrate with: give more, a few hundred say.")
    fit, judge = slice(0, None, 2), slice(1, None, 2)
    if kind == "numbers":
        shares = fitted_shares_of_numbers(apart[:, fit], labels[fit]) if how == "stacked" else even

        def error(weights: Tensor) -> float:
            mean = mean_of_numbers(apart[:, judge].double(), "stacked", weights)
            return float(F.mse_loss(mean.reshape(labels[judge].shape), labels[judge].double()))

        return Calibration(1.0, shares.tolist(), None, None, error(even), error(shares), count)
    shares = fitted_shares(apart[:, fit], labels[fit]) if how == "stacked" else even
    temperature = fitted_temperature(combined(apart[:, fit], how, shares), labels[fit])
    plain = combined(apart[:, judge], "average" if how == "stacked" else how, even)
    better = combined(apart[:, judge], how, shares) / temperature
    found = [
        (calibration_error(one, labels[judge]), float(F.cross_entropy(one, labels[judge]))) for one in (plain, better)
    ]
    (ece_before, loss_before), (ece_after, loss_after) = found
    return Calibration(temperature, shares.tolist(), ece_before, ece_after, loss_before, loss_after, count)


def _full(values: Tensor) -> Tensor:
    """At least single precision: probabilities of half precision do not add up."""
    return values if values.dtype == torch.float64 else values.float()
