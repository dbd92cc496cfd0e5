"""Ensemble: several networks as one model."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainwright.config.registry import suggestion
from trainwright.core.signatures import forward_parameters, takes_keyword
from trainwright.engines.torch.ensembles.bags import SAMPLE_NUMBER, bag_weights
from trainwright.engines.torch.ensembles.combining import (
    KINDS,
    PREDICT,
    Calibration,
    combined,
    disagreement_of,
    entropy_of,
    mean_of_numbers,
    spread_of,
)
from trainwright.engines.torch.ensembles.together import one_by_one, together, why_in_turn
from trainwright.engines.torch.loss_functions.base import Loss
from trainwright.engines.torch.losses import default_loss, logits_of, loss_of
from trainwright.engines.torch.targets import IGNORED, shifts_labels

logger = logging.getLogger("trainwright")


class Ensemble(nn.Module):
    """Members that are trained in one run, each as it would be alone, and that predict as one model.

    Every member sees the batches of the run. The gradient that reaches it is that of its own loss, and gradients are
    clipped member by member. Where ``torch.func`` can compute the members at once it is done (proved on the first batch
    against one after the other); otherwise they take turns, and one line says why.

    Args:
        members: The networks; or a function that makes one, which is called ``count`` times, each time with a seed.
        count: How many, where ``members`` is a function.
        seed: Of the first member; the others have those after it.
        predict: ``average`` (of probabilities), ``vote``, or ``stacked`` (weighted by shares that ``calibrate`` fits).
        kind: What members predict: ``classes``, or ``numbers``.
        bags: Whether each member learns from a bag of its own: samples drawn with replacement. Batches then need their
            samples' numbers: ``train_dataset=numbered(rows)``.
        loss: ``(logits, labels) -> mean loss`` in place of the members' own, cross-entropy or mean squared error.
        vectorize: False computes members in turn without trying.

    In training it returns ``loss`` (the mean over members, with the gradients of their sum) and ``logits``; otherwise
    ``logits`` and how sure they are: for classes ``entropy`` and ``disagreement``, for numbers ``spread``.

    >>> ensemble = Ensemble(lambda: nn.Linear(4, 3), count=5, seed=1).eval()
    >>> {name: tuple(value.shape) for name, value in ensemble(torch.zeros(2, 4)).items()}
    {'logits': (2, 3), 'entropy': (2,), 'disagreement': (2,)}
    """

    def __init__(
        self,
        members: Sequence[nn.Module] | Callable[[], nn.Module],
        count: int | None = None,
        *,
        seed: int = 42,
        predict: str = "average",
        kind: str = "classes",
        bags: bool = False,
        loss: Callable[[Any, Tensor], Tensor] | None = None,
        vectorize: bool = True,
    ) -> None:
        super().__init__()
        made = _made(members, count, seed)
        _refuse_choices(made, predict, kind, bags, loss)
        self.members = nn.ModuleList(made)
        self.seeds = [seed + place for place in range(len(made))]
        self.predict, self.kind, self.bags, self.loss, self.vectorize = predict, kind, bags, loss, vectorize
        #: How members are computed in training, in words; empty until the first batch has shown it.
        self.how = "" if vectorize else "in turn"
        self._apart = False
        self._member_takes = forward_parameters(made[0])
        self._own_loss = loss is None and not bags and takes_keyword(self._member_takes, "labels")
        self.register_buffer("shares", torch.full((len(made),), 1 / len(made)))
        self.register_buffer("temperature", torch.ones(()))

    shares: Tensor
    temperature: Tensor

    # ---- what a Trainer asks of a model

    @property
    def shifts_labels(self) -> bool:
        """Whether position i is compared with label i + 1, as members do it."""
        return shifts_labels(self.members[0])

    def forward_parameters(self) -> dict[str, inspect.Parameter]:
        """What members take, labels and samples' numbers: the columns of data that are of use."""
        known = dict(self._member_takes)
        if all(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in known.values()):
            # They take whatever they are given.
            return known
        for name in ("labels", SAMPLE_NUMBER):
            known.setdefault(name, inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None))
        return known

    def clipped_apart(self) -> list[list[nn.Parameter]]:
        """The parameters of each member: a gradient of one never shortens those of another."""
        return [list(member.parameters()) for member in self.members]

    # ---- a pass

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        labels, numbers = kwargs.pop("labels", None), kwargs.pop(SAMPLE_NUMBER, None)
        if self.training:
            return self._training_pass(args, kwargs, labels, numbers)
        apart = self._logits_apart(args, kwargs)
        found = self._predicted(apart)
        loss = {} if labels is None else {"loss": self._loss_of_prediction(found["logits"], labels)}
        return {**loss, "logits": apart.movedim(0, 1)} if self._apart else {**loss, **found}

    def _training_pass(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], labels: Tensor | None, numbers: Tensor | None
    ) -> dict[str, Tensor]:
        weights = self._weights_of(numbers, labels)

        def one(member: Callable[..., Any], weight: Tensor | None) -> tuple[Tensor, Tensor]:
            given = {**kwargs, "labels": labels} if self._own_loss and labels is not None else kwargs
            outputs = member(*args, **given)
            if self._own_loss or labels is None:
                loss = self._loss_in(outputs)
                return loss, _logits_or_loss(outputs, loss)
            return self._loss_of_member(outputs, labels, weight), logits_of(outputs)

        members = list(self.members)
        if not self.how:
            reason = why_in_turn(members, one, weights)
            self.how = "together" if reason is None else f"in turn: {reason}"
            self._say_how(reason)
        losses, logits = (together if self.how == "together" else one_by_one)(members, one, weights)
        total = losses.sum()
        # The value people read is a member's; the gradient is what each has alone, and not a part of it.
        return {"loss": losses.detach().mean() + (total - total.detach()), "logits": logits.detach().mean(0)}

    def _say_how(self, reason: str | None) -> None:
        if reason is None:
            logger.info("The %d members of the ensemble are computed together.", len(self.members))
        else:
            logger.warning("The %d members of the ensemble are computed in turn: %s.", len(self.members), reason)

    def _weights_of(self, numbers: Tensor | None, labels: Tensor | None) -> Tensor | None:
        if not self.bags:
            return None
        if numbers is None or labels is None:
            raise ValueError(
                "Ensemble(bags=True) needs the number of each sample, and its labels, in the batch: pass "
                "train_dataset=trainwright.numbered(rows), whose rows are dicts with labels; or set bags=False."
            )
        return bag_weights(numbers.reshape(-1), self.seeds)

    def _loss_in(self, outputs: Any) -> Tensor:
        try:
            return loss_of(outputs, None, {})
        except ValueError:
            raise ValueError(
                "An Ensemble computes the loss of each member by itself, and this batch gave it none: the batch needs "
                "'labels' (rows that are dicts), and compute_loss_func or label smoothing of a Trainer cannot reach "
                "members: pass Ensemble(loss=...) instead."
            ) from None

    def _loss_of_member(self, outputs: Any, labels: Tensor, weight: Tensor | None) -> Tensor:
        if self.loss is not None:
            return self.loss(outputs, labels)
        logits = logits_of(outputs)
        self._refuse_other_kind(labels)
        return default_loss(logits, labels) if weight is None else _weighted_loss(logits, labels, weight)

    def _refuse_other_kind(self, labels: Tensor) -> None:
        if labels.is_floating_point() and self.kind == "classes":
            raise ValueError("The labels are amounts, and the Ensemble predicts classes: pass kind='numbers'.")

    # ---- predictions

    def _logits_apart(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        # In turn: evaluated, exported and loaded elsewhere it is the same computation.
        return torch.stack([logits_of(member(*args, **kwargs)) for member in self.members])

    def _predicted(self, apart: Tensor) -> dict[str, Tensor]:
        if self.kind == "numbers":
            return {"logits": mean_of_numbers(apart, self.predict, self.shares), "spread": spread_of(apart)}
        logits = combined(apart, self.predict, self.shares) / self.temperature.to(torch.float32)
        return {"logits": logits, "entropy": entropy_of(logits), "disagreement": disagreement_of(apart)}

    def _loss_of_prediction(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.loss is not None:
            return self.loss(logits, labels)
        self._refuse_other_kind(labels)
        if self.shifts_labels:
            logits, labels = logits[..., :-1, :], labels[..., 1:]
        return default_loss(logits, labels)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Within it an evaluation gives the logits of each member: (samples, members, ...)."""
        self._apart = True
        try:
            yield
        finally:
            self._apart = False

    @torch.no_grad()
    def take(self, found: Calibration) -> None:
        """From now on predict with the shares and the temperature of a calibration."""
        self.shares.copy_(torch.tensor(found.shares))
        self.temperature.fill_(found.temperature)


def _weighted_loss(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """The mean loss over targets, each counted as often as its sample is in the bag.

    Divided by the batch's own number of targets, as without bags: batches weigh the same however they are cut.
    """
    if labels.is_floating_point():
        each = F.mse_loss(logits.reshape(labels.shape), labels, reduction="none")
        return (each * weight.reshape(-1, *[1] * (labels.ndim - 1)).to(each.dtype)).mean()
    flat = labels.reshape(-1)
    each = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), flat, ignore_index=IGNORED, reduction="none")
    weights = weight.to(each.dtype).repeat_interleave(len(flat) // weight.shape[0])
    return (each * weights).sum() / (flat != IGNORED).sum()


def _logits_or_loss(outputs: Any, loss: Tensor) -> Tensor:
    """The prediction, or where a model returns nothing but its loss, that."""
    try:
        return logits_of(outputs)
    except (StopIteration, IndexError):
        return loss


def _made(members: Any, count: int | None, seed: int) -> list[nn.Module]:
    if isinstance(members, nn.Module) or not (callable(members) or isinstance(members, Sequence)):
        raise ValueError("Ensemble takes a list of networks, or a function that makes one: Ensemble(lambda: Net(), 5).")
    if not callable(members):
        if count not in (None, len(members)):
            raise ValueError(f"count={count}, but there are {len(members)} members: leave it out.")
        return list(members)
    if isinstance(count, bool) or not isinstance(count, int):
        raise ValueError(f"count={count!r}: say how many members to make, such as Ensemble(make, 5).")
    made = []
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        for place in range(count):
            torch.manual_seed(seed + place)
            made.append(members())
    return made


def _refuse_loss(made: list[nn.Module], loss: object) -> None:
    """Members take the mean over the usual targets, so that is what a loss has to be."""
    if not isinstance(loss, Loss):
        return
    if loss.joins_samples is not None or type(loss).count_targets is not Loss.count_targets:
        raise ValueError(
            f"{type(loss).__name__} is no mean over samples or their labels, and members of an ensemble are weighed by "
            "those: let forward of the networks compute it."
        )
    if loss.counts_labels and loss.found_weights is None:
        raise ValueError(
            "class_weights='balanced' counts the labels of a Trainer's training data, which a loss inside an Ensemble "
            "does not see: give class_weights as a list."
        )
    if loss.compares_positions and shifts_labels(made[0]):
        raise ValueError(
            f"{type(loss).__name__} compares each position with its own label, and these networks learn the next one: "
            "leave the loss out, they compute theirs."
        )


def _refuse_choices(made: list[nn.Module], predict: str, kind: str, bags: bool, loss: object) -> None:
    if len(made) < 2 or not all(isinstance(member, nn.Module) for member in made):
        raise ValueError(f"An Ensemble needs at least two networks, and these are {len(made)}: {made!r:.80}.")
    if len({id(member) for member in made}) < len(made):
        raise ValueError("Two members are the same network: make each anew, as in Ensemble(lambda: Net(), 5).")
    for name, value, known in (("predict", predict, PREDICT), ("kind", kind, KINDS)):
        if value not in known:
            raise ValueError(f"{name}={value!r} should be one of {', '.join(known)}{suggestion(value, known)}.")
    if predict == "vote" and kind == "numbers":
        raise ValueError("Members vote for classes, not for amounts: predict='average' or 'stacked'.")
    _refuse_loss(made, loss)
    if not bags:
        return
    if loss is not None:
        raise ValueError("Bags weigh the loss of each sample, and loss= gives only a mean: leave one of both out.")
    if takes_keyword(forward_parameters(made[0]), "labels"):
        raise ValueError(
            "Bags weigh the loss of each sample, and these networks compute a mean by themselves from labels=: let "
            "forward take no labels and return logits, or set bags=False."
        )
