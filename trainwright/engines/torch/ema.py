"""An exponential moving average of the weights, kept beside them while training goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.config.arguments import TrainingArguments
from trainwright.core.callback import TrainerCallback
from trainwright.core.state import TrainerControl, TrainerState


class EMACallback(TrainerCallback):
    """After each optimizer step: ``average = decay * average + (1 - decay) * weight``.

    Until ``start_step`` steps are done the average is simply the weights. Floating-point buffers (batch norm's
    statistics) are averages already and are copied. ``use_at_end`` leaves the averages in the model after training;
    ``applied`` puts them there for a while::

        with ema.applied(trainer.model):
            trainer.evaluate()

    Averages of half-precision weights are kept in float32: a thousandth of a difference would be lost in rounding.
    """

    def __init__(self, decay: float = 0.999, start_step: int = 0, use_at_end: bool = False) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay} must lie in [0, 1); 0.999 averages over about the last thousand steps.")
        if start_step < 0:
            raise ValueError(f"start_step={start_step} must not be negative; 0 averages from the first step on.")
        self.decay = decay
        self.start_step = start_step
        self.use_at_end = use_at_end
        #: Steps that went into the averages.
        self.updates = 0
        self._averages: dict[str, Tensor] = {}
        self._pairs = _Pairs()
        self._restored = False
        self._model: nn.Module | None = None
        self._followed: dict[str, Tensor] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.use_at_end and args.load_best_model_at_end:
            raise ValueError(
                "EMACallback(use_at_end=True) and load_best_model_at_end=True both decide the final weights: keep one."
            )
        model: nn.Module = kwargs["model"]
        if self._restored:
            self._averages = _moved(self._averages, model)
        else:
            self._averages = {name: _average_of(tensor) for name, tensor in _tracked(model).items()}
            self.updates = 0
        self._restored = False
        self._follow(model)

    def _follow(self, model: nn.Module) -> None:
        self._model, self._followed = model, _tracked(model)
        self._pairs = _Pairs(model, self._averages)

    def on_parameters_replaced(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.replaced(kwargs["replaced"])

    def replaced(self, mapping: dict[Any, tuple[Any, Any]]) -> None:
        """A recipe put smaller parameters in place of some: their averages lose the same parts."""
        if self._model is None:
            return
        averages: dict[str, Tensor] = {}
        for name, tensor in _tracked(self._model).items():
            before = self._followed.get(name)
            kept = mapping[before][1] if before is not None and before in mapping else None
            average = self._averages.get(name) if kept is None else kept(self._averages[name])
            # Buffers are copied at every step anyway.
            fits = average is not None and average.shape == tensor.shape
            averages[name] = average if fits and average is not None else _average_of(tensor)
        self._averages = averages
        self._follow(self._model)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # The step is counted after this event.
        if state.global_step < self.start_step:
            self._pairs.copy()
        else:
            self._pairs.move(1 - self.decay)
            self.updates += 1
        for modifier in kwargs.get("modifiers") or ():
            # An average of a weight that was pruned on the way would not be zero.
            for name, mask in getattr(modifier, "masks", {}).items():
                if name in self._averages:
                    self._averages[name].mul_(mask)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.use_at_end:
            _write(self._averages, _tracked(kwargs["model"]))
        self._model, self._followed = None, {}

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Averages instead of weights inside the ``with``; afterwards the weights are back, bit for bit."""
        if not self._averages:
            raise ValueError("There are no averages yet: train first, or load a checkpoint that has them.")
        tensors = _tracked(model)
        _refuse_mismatch(self._averages, tensors)
        kept = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        try:
            _write(self._averages, tensors)
            yield
        finally:
            _write(kept, tensors)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint stores: ``tensors`` by name (not copies), and ``values`` that JSON can hold."""
        return {"tensors": dict(self._averages), "values": {"updates": self.updates}}

    def load_state_dict(self, stored: dict[str, Any]) -> None:
        """Continue with what ``state_dict`` returned; takes effect at once, and the next training goes on from it."""
        self._averages = {name: tensor.detach().clone() for name, tensor in stored["tensors"].items()}
        self.updates = int(stored["values"]["updates"])
        # Saved before training had begun, there is nothing to go on from.
        self._restored = bool(self._averages)


class _Pairs:
    """Averages and the tensors they follow, in lists, so that one call moves them all."""

    def __init__(self, model: nn.Module | None = None, averages: dict[str, Tensor] | None = None) -> None:
        self._same: tuple[list[Tensor], list[Tensor]] = ([], [])
        self._wider: tuple[list[Tensor], list[Tensor]] = ([], [])
        self._buffers: tuple[list[Tensor], list[Tensor]] = ([], [])
        if model is None or averages is None:
            return
        parameters = dict(model.named_parameters())
        for name, tensor in _tracked(model).items():
            average = averages[name]
            if name not in parameters:
                pair = self._buffers
            else:
                pair = self._same if average.dtype == tensor.dtype else self._wider
            pair[0].append(average)
            pair[1].append(tensor)

    @torch.no_grad()
    def copy(self) -> None:
        """Make the averages equal to what they follow."""
        for averages, tensors in (self._same, self._wider, self._buffers):
            if averages:
                torch._foreach_copy_(averages, tensors)

    @torch.no_grad()
    def move(self, share: float) -> None:
        """Move each average by ``share`` of its distance; buffers are copied."""
        if self._same[0]:
            torch._foreach_lerp_(self._same[0], self._same[1], share)
        if self._wider[0]:
            widened = [tensor.to(average.dtype) for average, tensor in zip(*self._wider, strict=True)]
            torch._foreach_lerp_(self._wider[0], widened, share)
        if self._buffers[0]:
            torch._foreach_copy_(*self._buffers)


def _tracked(model: nn.Module) -> dict[str, Tensor]:
    """Floating-point parameters and buffers, those that are shared under one name only."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor for name, tensor in named if tensor.is_floating_point()}


def _average_of(tensor: Tensor) -> Tensor:
    wide = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype
    return tensor.detach().to(wide, copy=True)


def _moved(averages: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Averages from a checkpoint, where the model's tensors are."""
    tensors = _tracked(model)
    _refuse_mismatch(averages, tensors)
    return {name: averages[name].to(tensor.device) for name, tensor in tensors.items()}


def _refuse_mismatch(averages: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in averages.items()}
    wanted = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    different = sorted(name for name in shapes.keys() | wanted.keys() if shapes.get(name) != wanted.get(name))
    if different:
        raise ValueError(
            f"The averages belong to another model: {', '.join(different[:5])} differ in name or shape. "
            "Use the model that was trained, or start without the stored averages."
        )


@torch.no_grad()
def _write(values: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        tensor.copy_(values[name])
