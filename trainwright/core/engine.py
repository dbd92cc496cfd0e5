"""The seam between training and a framework: what is asked of an engine, and by whom.

The loop takes steps (:class:`Step`), evaluation runs batches (:class:`Evaluator`), both where several processes may
take part (:class:`Exchange`). What saves, restores and changes a model asks for the rest (:class:`Engine`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trainwright.core.backend import Backend
from trainwright.core.layout import Weights

if TYPE_CHECKING:
    # It needs numpy, which the command line does without.
    from trainwright.randomness.own_generators import OwnGenerators


class Everything:
    """Contains whatever is asked for."""

    def __contains__(self, name: str) -> bool:
        return True


class Portion(NamedTuple):
    """One micro-batch's part in an optimizer step."""

    #: Targets the micro-batch's mean loss is taken over; None where counting would wait for the device.
    targets: Any
    #: Its share of the step's targets: a float, or a scalar on the device.
    weight: Any
    #: Targets of the whole step.
    step_targets: Any
    #: Micro-batches in the step.
    pieces: int


class Exchange(Protocol):
    """What processes that train or evaluate together find out from each other."""

    #: Whether no other process takes part.
    is_alone: bool
    #: Whether every process must run as many forward and backward passes as the others.
    runs_in_step: bool

    def most(self, number: int) -> int:
        """The largest ``number`` of any process."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """``value`` of each process that has samples of its own, in the order of the data they had."""
        ...


class Step(Exchange, Protocol):
    """How a framework trains. The loop calls these in the order they stand here."""

    def mark_boundary(self) -> None:
        """Remember what a step changes before its update, so that an interrupted one can be undone."""
        ...

    def sum_counts(self, count: Any) -> Any:
        """``count`` summed over all processes."""
        ...

    def rows(self, batch: Any) -> int:
        """Samples in ``batch``."""
        ...

    @property
    def count_targets(self) -> Callable[[Any], Any]:
        """What the mean loss of a batch is taken over, before it goes to the device."""
        ...

    def forward_backward(self, batch: Any, portion: Portion, *, sync: bool) -> Any:
        """Add ``portion.weight`` x gradient of the mean loss; returns weight x loss, on the device."""
        ...

    def is_out_of_memory(self, error: Exception) -> bool:
        """Whether ``error`` means that a forward or backward pass did not fit into memory."""
        ...

    def undo_step(self) -> None:
        """Gradients, random states and buffers as they were at the last boundary, and unused memory given back."""
        ...

    def finish_gradients(self, loss: Any, *, norm_wanted: bool) -> Any:
        """Sum over processes, unscale and clip; returns the loss of the whole step.

        Keeps the gradient norm for the log, and finds out whether the step is finite.
        """
        ...

    def apply_update(self) -> None:
        """Optimizer, scaler, schedule; a step whose loss or gradient is not finite leaves the weights as they are."""
        ...

    def clear_gradients(self) -> None: ...

    def train_mode(self) -> None:
        """Back to training after anything that evaluates."""
        ...

    #: Whether the pass that is under way is the last of its step; True outside of steps.
    is_last_pass: bool

    #: True from an evaluation to the next step: callbacks find the model in evaluation mode.
    appears_evaluated: bool

    def appear_evaluated(self) -> None:
        """Let the model, which is ready to train, say until :meth:`train_mode` that it does not train."""
        ...

    def keep_mode(self) -> None:
        """After a training: the mode that the model shows is its mode."""
        ...

    def record_loss(self, loss: Any) -> None:
        """Keep a step's loss for the next log without waiting for the device; None if the step had no target."""
        ...

    def read_log(self) -> dict[str, float]:
        """loss (mean since the last call), grad_norm and learning_rate; the only place that waits for the device."""
        ...

    def plateau_step(self, value: float) -> None:
        """Tell a metric-driven schedule what the evaluation found."""
        ...


class WeightedMean(Protocol):
    """A running sum of loss x weight and of weights, kept on the device."""

    def add(self, loss: Any, weight: Any) -> None: ...
    def value(self) -> float | None:
        """The mean, which waits for the device; None if nothing was added."""
        ...


class Evaluator(Exchange, Protocol):
    """What evaluation asks of a framework."""

    def rows(self, batch: Any) -> int: ...
    @property
    def count_targets(self) -> Callable[[Any], Any]: ...
    def is_out_of_memory(self, error: Exception) -> bool: ...

    def to_host(self, value: Any) -> Any:
        """Numpy arrays in place of the framework's, in nested tuples, lists and dicts."""
        ...

    def from_host(self, value: Any) -> Any:
        """The framework's arrays, on the device, in place of numpy's."""
        ...

    def weighted_mean(self) -> WeightedMean: ...

    def release_memory(self) -> None:
        """Give memory back that nothing uses."""
        ...


@dataclass(frozen=True)
class UpdateHooks:
    """What is done in each step besides: to its gradients before they are clipped, to weights around the update."""

    shape_gradients: Sequence[Callable[[], None]] = ()
    before_update: Sequence[Callable[[], None]] = ()
    after_update: Sequence[Callable[[], None]] = ()


@dataclass(frozen=True)
class StepOverrides:
    """What a subclass of the Trainer does in each step in place of the engine; None where it leaves that to it."""

    #: Clips the gradients, and returns the norm to log.
    clip: Callable[[], Any] | None = None
    #: The rate to log.
    learning_rate: Callable[[], Any] | None = None


def _nothing(*_: Any) -> None:
    """For who is alone and is asked nothing."""


@dataclass(frozen=True)
class RunLink:
    """What an engine asks of the run that it computes for."""

    #: What this process has to say to the others before the next step, as flags; and the sums of what all said.
    tell: Callable[[], list[int]] = list
    hear: Callable[[list[int]], None] = _nothing
    #: Waits until a copy that is under way no longer needs the weights as they are.
    wait_for_copy: Callable[[], None] = _nothing
    #: Told where weights change in the middle of a step: until it is over there is no state worth saving.
    update_begins: Callable[[], None] = _nothing
    #: Whether a step may have to be undone, random numbers too.
    undoes_steps: bool = True


class Precision(Protocol):
    """Number formats of forward passes."""

    dtype: Any
    #: fp16's gradient scaler, or None.
    scaler: Any

    def autocast(self, cache_enabled: bool = True) -> AbstractContextManager[Any]:
        """Context for a forward pass."""
        ...


class Losses(Protocol):
    """Losses of a run's steps, added up."""

    def overall(self) -> float:
        """Mean loss of all steps."""
        ...

    def state(self) -> Callable[[], dict[str, Any]]:
        """For a checkpoint; calling the answer waits for the device."""
        ...

    def load_state_dict(self, state: dict[str, Any], device: Any) -> None: ...


class Boundary(Protocol):
    """The state before a step, which can be gone back to."""

    @property
    def written_parameters(self) -> set[str]:
        """Parameters that the model writes in its forward pass."""
        ...

    def roll_back(self) -> None:
        """Random states and buffers as they were at the boundary."""
        ...

    def buffers(self) -> dict[str, Any]:
        """Buffers that steps change, as they were then."""
        ...

    def random_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Random states as they were then, as a checkpoint stores them."""
        ...


class Engine(Step, Evaluator, Protocol):
    """Everything that is asked of a framework."""

    device: Any
    backend: Backend
    #: Generators that the model, and what else takes part in a step, keep for themselves.
    own_generators: OwnGenerators
    #: Trained parameters in the model's order, and those besides the model's.
    parameters: list[Any]
    extra_parameters: list[Any]
    #: Held while weights change; whoever copies them from another thread takes it.
    update_lock: threading.Lock
    #: Whether the last step was not finite, and so was not applied: a bool, or 0.0 or 1.0 on the device.
    was_bad: Any

    @property
    def supports(self) -> Container[str]:
        """What this engine does that not every engine does, by the names in training/engine_choice.py."""
        ...

    @property
    def weights(self) -> Weights: ...
    @property
    def precision(self) -> Precision: ...
    @property
    def meter(self) -> Losses: ...
    @property
    def boundary(self) -> Boundary: ...

    # ---- a training begins, and changes what it works on

    def train_also(self, parameters: list[Any]) -> None:
        """Parameters besides the model's that the optimizer trains; before :meth:`attach`."""
        ...

    def attach(self, model: Any, optimizer: Any, scheduler: Any) -> None:
        """Take the model as it will be called, and what updates it."""
        ...

    def begin_run(self, link: RunLink) -> None:
        """A run begins, or goes back to a checkpoint."""
        ...

    def first_within(self, context: Callable[[], AbstractContextManager[None]]) -> None:
        """Make the next pass over a batch within ``context()``."""
        ...

    def set_update_hooks(self, hooks: UpdateHooks) -> None:
        """What is done in every step besides, from now on."""
        ...

    def set_step_overrides(self, overrides: StepOverrides) -> None:
        """Leave to a subclass what it does itself, from now on."""
        ...

    def clip_gradients(self) -> Any:
        """Scale the gradients of the step as ``max_grad_norm`` says; returns the norm that they had."""
        ...

    def gradient_norm(self) -> Any:
        """The norm of the step's gradients over the whole model."""
        ...

    def follow_schedule(self, scheduler: Any) -> None:
        """Another learning-rate schedule in place of the one before."""
        ...

    def look_at_parameters(self, model: Any, known: set[Any] | None = None) -> None:
        """Take the model again where some of its parameters were replaced; ``known`` are the trained ones."""
        ...

    def changing_weights(self) -> AbstractContextManager[None]:
        """Around a change of the weights between steps: nobody copies them in it."""
        ...

    # ---- within a step

    def to_device(self, value: Any) -> Any:
        """Nested tensors on the run's device."""
        ...

    def backward(self, loss: Any) -> None:
        """Gradients of ``loss``, scaled where fp16 needs it."""
        ...

    def backward_of_nothing(self, loss: Any) -> None:
        """Take part in the exchange of gradients with zeros, where ``loss`` is over no target at all."""
        ...

    def step_times(self) -> list[float]:
        """Seconds of own work per step of each process since the last call, in the order of rank; or nothing."""
        ...

    # ---- evaluated, saved, restored

    #: Whether another thread may copy the weights while a step is under way, up to its update.
    may_copy_aside: bool
    #: Whether the model's tensors are behind between steps, until :meth:`show_weights` is called.
    hides_weights: bool

    def eval_mode(self, model: Any) -> None: ...

    def rest_weights(self) -> None:
        """The weights that are evaluated and saved: with a schedule-free optimizer, its average."""
        ...

    def evaluated(self, model: Any) -> Any:
        """``model`` as it is called in an evaluation."""
        ...

    def show_weights(self) -> None:
        """Before somebody looks at the model between steps: its weights as they are now."""
        ...

    def reread(self) -> None:
        """After weights or optimizer state were read from a checkpoint."""
        ...

    def last_step(self) -> Callable[[], dict[str, float | None]]:
        """What the next log says of the last step, for a checkpoint; calling the answer waits for the device."""
        ...

    def restore_last_step(self, saved: dict[str, float | None]) -> None: ...
