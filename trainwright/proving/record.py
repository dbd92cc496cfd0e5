"""What a training did, step by step, and how far another one is from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.core.callback import TrainerCallback
from trainwright.core.dtensors import whole
from trainwright.data.position import LastBatch
from trainwright.engines.torch.targets import unwrap
from trainwright.training.setup import Setup

THE_LOSS = "the loss"
#: A parameter's gradient counts as at least this share of the whole gradient: that of one which has none but rounding
#: (the bias of a key, say) is nothing to compare with.
_LEAST_SHARE = 1e-3


@dataclass
class Record:
    """Losses, gradients and weights of a short training."""

    losses: list[float] = field(default_factory=list)
    gradients: list[dict[str, Tensor]] = field(default_factory=list)
    start: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    #: What each step was trained on, as digests.
    batches: list[Any] = field(default_factory=list)
    #: Accelerations that were used, and why the others were not.
    accelerated: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Deviation:
    """How far a training is from another, where it is furthest."""

    loss: float | None
    gradient: float | None
    #: The parameter where the gradient is furthest.
    gradient_at: str
    #: Of each parameter.
    weights: dict[str, float]

    @property
    def weights_at(self) -> str:
        """The parameter where the weights are furthest."""
        return _largest(self.weights)


class Recorder(TrainerCallback):
    """Records a training of a copy.

    Args:
        setup: Of the copy.
        gradients: Whether they are recorded, too.
        nudge: Gradients are changed by this share of themselves, after they were recorded.
    """

    def __init__(self, setup: Setup, *, gradients: bool = True, nudge: float = 0.0) -> None:
        self.record = Record()
        self._of, self._wants_gradients, self._nudge = setup, gradients, nudge

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.record.start = _weights(self._of)
        run = self._of.run
        assert run is not None
        usual = run.observe_step

        def observe(batches: list[Any]) -> None:
            self.record.batches.append([LastBatch(batch).digest() for batch in batches])
            if usual is not None:
                usual(batches)

        run.observe_step = observe

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        if self._wants_gradients:
            self.record.gradients.append(_gradients(self._of.model))
        if self._nudge:
            self._change_gradients()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        acceleration = self._of.run.acceleration if self._of.run is not None else None
        if acceleration is not None:
            self.record.accelerated = [technique.name for technique in acceleration.used()]
            self.record.left_out = dict(acceleration.left_out)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.record.weights = _weights(self._of)
        history = self._of.state.log_history
        self.record.losses = [entry["loss"] for entry in history if "loss" in entry]

    def _change_gradients(self) -> None:
        gradients = [p.grad for p in self._of.model.parameters() if p.grad is not None and not p.grad.is_sparse]
        least = _LEAST_SHARE * float(torch.stack([g.norm() for g in gradients]).norm()) if gradients else 0.0
        generator = torch.Generator().manual_seed(0)
        for gradient in gradients:
            size = self._nudge * max(float(gradient.norm()), least) / math.sqrt(gradient.numel())
            signs = torch.randint(0, 2, gradient.shape, generator=generator).to(gradient) * 2 - 1
            # Rows of an embedding that are not used have no rounding either.
            gradient.add_(signs * (gradient != 0), alpha=size)


def _weights(setup: Setup) -> dict[str, Tensor]:
    return {name: _kept(p) for name, p in unwrap(setup.model).named_parameters()}


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: _kept(p.grad) for name, p in unwrap(model).named_parameters() if p.grad is not None}


def _kept(tensor: Tensor) -> Tensor:
    found = whole(tensor.detach())
    # In main memory: a device may have room for the training only.
    return (found.to_dense() if found.is_sparse else found).to("cpu", copy=True)


def compare(found: Record, expected: Record) -> Deviation:
    """How far ``found`` is from ``expected``: the largest over all steps and parameters, as shares."""
    losses = [abs(a - b) / max(abs(b), 1e-30) for a, b in zip(found.losses, expected.losses, strict=False)]
    if len(found.losses) != len(expected.losses):
        losses.append(math.inf)
    by_parameter: dict[str, float] = {}
    for ours, theirs in zip(found.gradients, expected.gradients, strict=False):
        for name, size in shares(ours, theirs).items():
            by_parameter[name] = worst_of(by_parameter.get(name, 0.0), size)
    moves = {name: expected.weights[name] - start for name, start in expected.start.items()}
    changed = {name: found.weights[name] - expected.start[name] for name in moves if name in found.weights}
    gradient_at = _largest(by_parameter)
    return Deviation(
        loss=max(losses, key=_or_infinite, default=0.0),
        gradient=by_parameter[gradient_at] if gradient_at else None,
        gradient_at=gradient_at,
        weights=shares(changed, moves),
    )


def shares(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """For each name how long the difference is, as a share of what is expected; what is missing counts as zeros."""
    names = [*expected, *(name for name in found if name not in expected)]
    if not names:
        return {}
    lengths = {name: float(expected[name].norm()) if name in expected else 0.0 for name in names}
    least = max(_LEAST_SHARE * math.hypot(*lengths.values()), 1e-300)
    return {name: _distance(found.get(name), expected.get(name)) / max(lengths[name], least) for name in names}


def _distance(one: Tensor | None, other: Tensor | None) -> float:
    if one is None or other is None:
        present = other if one is None else one
        return 0.0 if present is None else float(present.norm())
    if one.shape != other.shape:
        return math.inf
    return float((one - other.to(one)).norm())


def worst_of(one: float, other: float) -> float:
    return max(one, other, key=_or_infinite)


def _largest(sizes: dict[str, float]) -> str:
    return max(sizes, key=lambda name: _or_infinite(sizes[name]), default="")


def _or_infinite(value: float) -> float:
    return math.inf if math.isnan(value) else value


def every_pass_within(engine: Any, context: Callable[[], AbstractContextManager[None]]) -> None:
    """Make each pass of ``engine`` over a batch within ``context()``."""

    @contextmanager
    def this_and_the_next() -> Iterator[None]:
        engine.first_within(this_and_the_next)
        with context():
            yield

    engine.first_within(this_and_the_next)
