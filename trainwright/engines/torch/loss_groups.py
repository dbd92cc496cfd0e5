"""``log_loss_per``: the training loss of each class, or of each source of samples, beside the loss of all.

Taken from the outputs that the training makes anyway, and added up on the device: nothing waits before a log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trainwright.config.arguments import TrainingArguments
from trainwright.core.callback import TrainerCallback
from trainwright.core.state import ExportableState, TrainerControl, TrainerState
from trainwright.engines.torch.losses import logits_of
from trainwright.engines.torch.memory import is_out_of_memory
from trainwright.engines.torch.targets import IGNORED, base_model, find_labels, shifts_labels

logger = logging.getLogger("trainwright")

#: Groups with a curve of their own; what belongs to more of them is called "other".
MOST_GROUPS = 64
OTHER = "other"

#: Sum of losses and number of targets.
Sums = dict[str, tuple[float, float]]


class LossGroups(TrainerCallback, ExportableState):
    """Adds up losses by ``by``, which is ``"class"`` or the name of a column.

    The mean of a group is over its targets since the log before, however batches were cut and whichever process had
    them: cross-entropy for classes and tokens, squared error for numbers.
    """

    _leaves_model_alone = True

    def __init__(self, by: str) -> None:
        self.by = by
        self._names: list[str] = []
        self._shifts = False
        self._class_names: dict[Any, Any] | None = None
        #: Of the step that is being taken: group by group, and step by step since the log before.
        self._of_step: list[tuple[Tensor, Tensor]] = []
        self._taken: list[tuple[Tensor, Tensor]] = []
        self._earlier: Sums = {}
        self._has_seen = self._gave_up = False
        self._is_alone = self._skips_nonfinite = True
        self._has_several = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        model = kwargs["model"]
        self._shifts = shifts_labels(model)
        named = getattr(getattr(base_model(model), "config", None), "id2label", None)
        self._class_names = dict(named) if isinstance(named, dict) else None
        kind = getattr(getattr(base_model(model), "config", None), "problem_type", None)
        self._has_several = kind == "multi_label_classification"
        if args.label_smoothing_factor:
            logger.warning("log_loss_per shows plain cross-entropy, without label_smoothing_factor.")
        if kwargs["data_words"].classes:
            self._class_names = dict(enumerate(kwargs["data_words"].classes))
        self._of_step, self._taken, self._has_seen, self._gave_up = [], [], False, False
        self._is_alone, self._skips_nonfinite = args.world_size == 1, args.logging_nan_inf_filter

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self._taken += self._of_step
        self._of_step = []
        if len(self._taken) > 256:
            self._taken = [self._added()]

    def forget_step(self) -> None:
        """The step is done again."""
        self._of_step = []

    def forget_steps(self) -> None:
        """A rewind: what was seen since the checkpoint is of a course that was given up."""
        self._of_step, self._taken = [], []

    @torch.no_grad()
    def see(self, outputs: Any, inputs: Any, groups: list[str] | None, weight: Any) -> None:
        """A micro-batch of the present step; one of weight 0 only keeps processes in step with each other."""
        if self._gave_up or (isinstance(weight, float) and weight == 0.0):
            return
        try:
            if self._has_several:
                raise ValueError("a sample may have several classes here")
            sums, counts = _row_losses(outputs, find_labels(inputs), shift=self._shifts)
            places = self._places(find_labels(inputs), groups, sums)
            if self._skips_nonfinite:
                finite = torch.isfinite(sums)
                sums, counts = torch.where(finite, sums, 0.0), torch.where(finite, counts, 0.0)
        except (ValueError, TypeError, StopIteration, IndexError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            self._give_up((str(error).strip().splitlines() or [type(error).__name__])[0])
            return
        belongs = (places[None, :] == torch.arange(MOST_GROUPS + 1, device=places.device)[:, None]).to(sums.dtype)
        if isinstance(weight, Tensor):
            belongs = belongs * (weight > 0)
        self._has_seen = True
        # Products of matrices, and not index_add: the same bits each time, on a GPU too.
        self._of_step.append((belongs @ sums, belongs @ counts))

    def _places(self, labels: Tensor, groups: list[str] | None, sums: Tensor) -> Tensor:
        if self.by == "class":
            if labels.is_floating_point() or labels.numel() != len(sums):
                raise ValueError("samples have no single class each; name a column of the data instead of 'class'")
            return labels.reshape(-1).clamp(max=MOST_GROUPS)
        if groups is None:
            raise ValueError("the batches that arrive do not say their groups")
        for group in groups:
            if group not in self._names and len(self._names) < MOST_GROUPS:
                self._names.append(group)
        known = {name: place for place, name in enumerate(self._names)}
        return torch.tensor([known.get(group, MOST_GROUPS) for group in groups], device=sums.device)

    def read(self, gather: Callable[[Sums], list[Sums]]) -> dict[str, float]:
        """Mean loss of each group since the last call; waits for the device, and every process must call it."""
        total: Sums = {}
        for part in gather(self._sums()):
            for name, (loss, count) in part.items():
                before = total.get(name, (0.0, 0.0))
                total[name] = before[0] + loss, before[1] + count
        self._taken, self._earlier = [], {}
        if not total and not self._has_seen and not self._gave_up:
            self._give_up("no outputs were seen; a training_step of your own must call super().training_step")
        kind = "class" if self.by == "class" else self.by
        return {f"loss/{kind}/{name}": loss / count for name, (loss, count) in sorted(total.items()) if count}

    def _sums(self) -> Sums:
        found = dict(self._earlier)
        if self._taken:
            sums, counts = (one.tolist() for one in self._added())
            for place, (loss, count) in enumerate(zip(sums, counts, strict=True)):
                if count:
                    name, before = self._name(place), found.get(self._name(place), (0.0, 0.0))
                    found[name] = before[0] + loss, before[1] + count
        return found

    def _added(self) -> tuple[Tensor, Tensor]:
        sums, counts = zip(*self._taken, strict=True)
        return torch.stack(sums).sum(0), torch.stack(counts).sum(0)

    def _name(self, place: int) -> str:
        if place >= MOST_GROUPS:
            return OTHER
        if self.by == "class":
            return str((self._class_names or {}).get(place, place))
        return self._names[place]

    def _give_up(self, why: str) -> None:
        self._gave_up, self._of_step, self._taken = True, [], []
        logger.warning("log_loss_per=%r is left out: %s.", self.by, why)

    # ---- checkpoints: a save between two logs

    def state(self) -> dict[str, Any]:
        # What other processes have is not known here: their first value after a resume is of what comes then.
        sums = self._sums() if self._is_alone else {}
        return {"args": {"by": self.by}, "attributes": {"_earlier": {name: list(pair) for name, pair in sums.items()}}}


def _row_losses(outputs: Any, labels: Any, *, shift: bool) -> tuple[Tensor, Tensor]:
    """For each sample the sum of its losses, and how many targets it has."""
    logits = logits_of(outputs)
    if not isinstance(logits, Tensor) or not logits.ndim:
        raise ValueError("the model's logits are not made (acceleration='off' makes them) or are not among its outputs")
    if not isinstance(labels, Tensor):
        raise ValueError("the batches have no labels")
    exact = torch.float32 if logits.device.type == "mps" else torch.float64
    if labels.is_floating_point():
        if labels.ndim > 1 and labels.shape[1:].numel() > 1:
            # Several classes, or several numbers: each has a loss of its own kind.
            raise ValueError("a sample has several numbers as its label")
        squares = (logits.reshape(labels.shape).float() - labels.float()).square()
        sums = squares.reshape(len(labels), -1).mean(1).to(exact)
        return sums, torch.ones_like(sums)
    if logits.ndim != labels.ndim + 1 or logits.shape[:-1] != labels.shape:
        raise ValueError(f"outputs of shape {tuple(logits.shape)} do not fit labels of shape {tuple(labels.shape)}")
    if shift and labels.ndim > 1:
        logits, labels = logits[..., :-1, :], labels[..., 1:]
    # Whatever a model calls its ignored label: none is looked up beyond the classes.
    labels = torch.where((labels >= 0) & (labels < logits.shape[-1]), labels, IGNORED).long()
    losses = F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), labels.reshape(-1), reduction="none", ignore_index=IGNORED
    )
    rows = len(labels)
    counted = (labels != IGNORED).reshape(rows, -1).sum(1)
    return losses.reshape(rows, -1).to(exact).sum(1), counted.to(exact)
