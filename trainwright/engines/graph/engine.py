"""An engine for torch models whose gradients and updates another framework computes.

Torch keeps the model's names and shapes, the optimizer's groups and its schedule, the random generator, and everything
that is saved; so checkpoints, callbacks and metrics are the same as with the torch engine, and a run saved on one can
go on with the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from trainwright.core.engine import Portion
from trainwright.engines.graph.buckets import padded
from trainwright.engines.graph.capture import Captured
from trainwright.engines.graph.comparing import Comparison, Expected
from trainwright.engines.graph.framework import Framework
from trainwright.engines.graph.lowered import Lengths, LoweredModel, call
from trainwright.engines.graph.mirror import Mirror
from trainwright.engines.graph.more_rules import rule_for
from trainwright.engines.graph.programs import Capture, Program, Programs
from trainwright.engines.graph.updates import Updates
from trainwright.engines.torch.engine import TorchEngine
from trainwright.engines.torch.targets import unwrap

#: Mean loss of ``(inputs, targets)`` under a model, in torch.
Loss = Callable[[nn.Module, Any], Any]


class GraphEngine(TorchEngine):
    """Runs the training step that ``loss`` describes on ``framework``."""

    def __init__(
        self,
        *,
        framework: Framework,
        loss: Loss,
        prepare: Callable[[Any], Any],
        wants_count: Callable[[], bool],
        capture: Capture,
        check: bool = True,
        recompute: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(training_step=_not_by_torch, **options)
        self.framework = framework
        self._loss = loss
        self._prepare = prepare
        self._wants_count = wants_count
        self._mirror = Mirror(framework)
        self._programs = Programs(framework, capture, recompute=recompute)
        self._comparison = Comparison(framework.name, is_on=check, halves=self.precision.dtype is not None)
        self._lengths = Lengths()
        self._gradients: dict[str, Any] = {}
        self._scale = 1.0

    supports: frozenset[str] = frozenset()

    def attach(self, model: nn.Module, optimizer: Any, scheduler: Any) -> None:
        super().attach(model, optimizer, scheduler)
        self._rule = rule_for(optimizer, self.framework.name)
        inner = unwrap(model)
        self._order = [name for name, _ in inner.named_parameters()]
        self._updates = Updates(self.framework, inner)
        self._mirror = Mirror(self.framework)
        self._comparison.renew()
        self._gradients = {}

    def _found(
        self, function: Loss, model: nn.Module, given: Any, *, gradients: bool
    ) -> tuple[Program, Expected | None]:
        """The program of ``function(model, given)`` in the run's precision, and what torch makes of the first batch."""
        # torch's own casts are captured with everything else; its cache of cast weights would outlive the capture.
        with self.precision.autocast(cache_enabled=False):
            program = self._programs.find(model, function, given, gradients=gradients)
            self._mirror.take_weights(model)
            return program, self._by_torch(program, model, function, given, gradients=gradients)

    # ---- one optimizer step

    def forward_backward(self, batch: Any, portion: Portion, *, sync: bool) -> Tensor | None:
        weight = float(portion.weight)
        if portion.step_targets == 0:
            return None
        if weight == 0.0:
            return torch.zeros(())
        if not self.model.training:
            self.train_mode()
        model = unwrap(self.model)
        targets = torch.tensor(int(portion.targets)) if self._wants_count() and portion.targets is not None else None
        given = padded(as_plain(self._prepare(batch)), getattr(model, "config", None)), targets
        program, expected = self._found(self._loss, model, given, gradients=True)
        results = self._run(program, model, given, weight * self._loss_scale)
        if expected is not None:
            self._compare(expected, program, model, results, weight * self._loss_scale)
        changed = len(program.computation.changed)
        self._write_buffers(model, program, results[1 : 1 + changed])
        self._add_gradients(program.computation.trained, results[1 + changed :])
        return self.framework.tensor(results[0]) / self._loss_scale

    @property
    def _loss_scale(self) -> float:
        """What fp16's scaler multiplies losses by, so that small gradients do not vanish; 1 without it."""
        return 1.0 if self.precision.scaler is None else self.precision.scaler.get_scale()

    def _by_torch(
        self, program: Program, model: nn.Module, function: Loss, given: Any, *, gradients: bool
    ) -> Expected | None:
        """The same by torch, of the first batch; a model of the framework's own has nothing to be compared with."""
        if self._mirror.is_ahead or not isinstance(program.computation, Captured):
            return None
        return self._comparison.expect(model, function, given, gradients=gradients)

    def _compare(
        self, expected: Expected, program: Program, model: nn.Module, results: tuple[Any, ...], weight: float | None
    ) -> None:
        names, changed = program.computation.trained, program.computation.changed
        tensors = [self.framework.tensor(array) for array in results]
        end = len(tensors) if weight is None else len(tensors) - len(names)
        outputs, buffers, gradients = tensors[: end - len(changed)], tensors[end - len(changed) : end], tensors[end:]
        if self.precision.scaler is not None and not all(bool(torch.isfinite(each).all()) for each in gradients):
            # The scale was too large for float16, which the scaler mends: the next batch is compared.
            self._comparison.renew()
            return
        if weight is not None:
            outputs, gradients = [outputs[0] / weight], [gradient / weight for gradient in gradients]
        self._comparison.compare(
            expected,
            outputs,
            dict(zip(names, gradients, strict=True)) if weight is not None else {},
            {**dict(model.named_buffers()), **dict(zip(changed, buffers, strict=True))},
        )

    def _run(self, program: Program, model: nn.Module, given: Any, weight: float | None) -> tuple[Any, ...]:
        computation, array = program.computation, self.framework.array
        leaves = pytree.tree_leaves(given)
        weights, buffers = self._mirror.weights, dict(model.named_buffers())
        last = [] if weight is None else [array(torch.tensor(weight))]
        return program.function(
            *(weights[name] for name in computation.trained),
            *(weights[name] if name in weights else array(buffers[name].detach()) for name in computation.fixed),
            *program.constants,
            *(self.framework.shared(leaves[place]) for place in computation.inputs),
            *(self.framework.shared(draw()) for draw in computation.random),
            *last,
        )

    def _write_buffers(self, model: nn.Module, program: Program, values: tuple[Any, ...]) -> None:
        """Statistics of the forward pass live in torch: they are small, and a step that fails is undone there."""
        for name, value in zip(program.computation.changed, values, strict=True):
            model.get_buffer(name).copy_(self.framework.tensor(value))

    def _add_gradients(self, names: list[str], gradients: tuple[Any, ...]) -> None:
        both = tuple(name for name in names if name in self._gradients)
        new = dict(zip(names, gradients, strict=True))
        if both:
            sums = self._updates.sum(both, [self._gradients[name] for name in both], [new[name] for name in both])
            new.update(zip(both, sums, strict=True))
        # In the model's order, whichever batch came first: a norm's last bit depends on the order of summation.
        merged = {**self._gradients, **new}
        self._gradients = {name: merged[name] for name in self._order if name in merged}

    def backward(self, loss: Tensor) -> None:
        raise ValueError(
            f"engine={self.framework.name!r} computes loss and gradients in one graph, so nobody can call backward(): "
            "override compute_loss instead of training_step."
        )

    def finish_gradients(self, loss: Tensor | None, *, norm_wanted: bool) -> Tensor | None:
        self._scaler = None
        if not self._gradients:
            self._grad_norm, self.was_bad = None, False
            return loss
        norm = self._updates.norm(self._gradients) / self._loss_scale
        scale = min(1.0, self.max_grad_norm / (norm + 1e-6)) if self.max_grad_norm > 0 else 1.0
        self._scale = scale / self._loss_scale
        self._grad_norm = norm
        loss_is_bad = loss is not None and not bool(torch.isfinite(loss))
        if self.precision.scaler is not None:
            # Infinite gradients are the scaler's business: it looks for the largest scale that works.
            self._scaler = self.precision.scaler
            self.was_bad = loss_is_bad
        else:
            self.was_bad = loss_is_bad or not math.isfinite(norm)
        return loss

    def _update(self) -> bool:
        if self.was_bad:
            self.boundary.restore_buffers()
        elif self._gradients:
            model = unwrap(self.model)
            self._mirror.take_weights(model)
            self._mirror.take_steps(model, self.optimizer)
            self._updates.apply(self._rule, self._mirror, self._gradients, model, self.optimizer, self._scale)
        # Schedules warn where the optimizer they belong to never took a step.
        self.optimizer._opt_called = True
        return True

    def _update_scaled(self, scaler: Any) -> bool:
        """The same with fp16's scaler; where gradients have overflowed the schedule waits too, as with torch."""
        overflowed = not math.isfinite(self._grad_norm or 0.0)
        if self.was_bad or not overflowed:
            self._update()
        scaler.load_state_dict(_after_step(scaler.state_dict(), overflowed=overflowed))
        return not overflowed

    def clear_gradients(self) -> None:
        self._gradients = {}

    @property
    def shapes_compiled(self) -> int:
        """Computations that were compiled so far, each for one shape of batch."""
        return len(self._programs)

    # ---- between steps the weights are torch's

    def rest_weights(self) -> None:
        super().rest_weights()
        if hasattr(self, "model"):
            self.show_weights()
            with self.update_lock:
                self._mirror.give_state(unwrap(self.model), self.optimizer, self._rule)

    def show_weights(self) -> None:
        """Let whoever looks at the model see what was learned; what they change there counts."""
        if hasattr(self, "model"):
            with self.changing_weights():
                model: Any = unwrap(self.model)
                self._mirror.give_weights(model)
                if hasattr(model, "update_cell"):
                    # A model of the framework's own, behind a torch face.
                    model.update_cell()

    #: Another thread must not touch the framework's arrays while a step is under way.
    may_copy_aside = False
    hides_weights = True

    def evaluated(self, model: nn.Module) -> nn.Module:
        """``model`` as it is evaluated: with its weights of this moment, on the framework."""
        if not self._mirror.is_ahead:
            self._mirror.forget_weights()
        return LoweredModel(model, self._evaluate)

    def _evaluate(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        model = unwrap(model)
        longer = self._lengths.padded(model, kwargs)
        program, expected = self._found(call, model, (args, longer), gradients=False)
        results = self._run(program, model, (args, longer), None)
        if expected is not None:
            self._compare(expected, program, model, results, None)
        count = len(results) - len(program.computation.changed)
        self._write_buffers(model, program, results[count:])
        outputs = program.computation.rebuilt([self.framework.tensor(array) for array in results[:count]])
        return outputs if longer is kwargs else self._lengths.cut(model, args, kwargs, outputs)

    def train_mode(self) -> None:
        super().train_mode()
        if not self._mirror.is_ahead:
            # Somebody may have written to the model meanwhile.
            self._mirror.forget_weights()

    def reread(self) -> None:
        self._mirror = Mirror(self.framework)


def _after_step(scaler: dict[str, Any], *, overflowed: bool) -> dict[str, Any]:
    """The state of a ``GradScaler`` after a step: smaller when it overflowed, larger after many that did not."""
    if overflowed:
        return {**scaler, "scale": scaler["scale"] * scaler["backoff_factor"], "_growth_tracker": 0}
    steps = scaler["_growth_tracker"] + 1
    if steps < scaler["growth_interval"]:
        return {**scaler, "_growth_tracker": steps}
    return {**scaler, "scale": scaler["scale"] * scaler["growth_factor"], "_growth_tracker": 0}


def as_plain(batch: Any) -> Any:
    """A batch as dicts, lists and tensors, which torch can take apart: a tokenizer's encoding is none of these."""
    if hasattr(batch, "data") and isinstance(getattr(batch, "data", None), dict):
        return dict(batch.data)
    return dict(batch) if hasattr(batch, "items") else batch


def _not_by_torch(batch: Any, portion: Portion) -> Tensor | None:
    raise AssertionError("a graph engine takes no training step in torch")
