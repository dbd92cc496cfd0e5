"""Modifiers: what changes a training between two epochs. A recipe is a list of them.

When each method is called (``drive.py`` in ``recipes`` does the same for a loop written by hand)::

    train():
        prepare_model(model)                    before the optimizer is made; the model is on its device
        on_train_begin     begin, update        what is due at the epoch where the run stands
        for each optimizer step:
            for each micro-batch:
                around_pass(site, run)          run() is forward and backward
                    compute_loss(passes, inputs)
                    modify_loss(loss, outputs, inputs)
            shape_gradients(site)               summed over processes and unscaled, not yet clipped
            before_update(site)                 clipped; weights and optimizer are about to change
            optimizer.step()
            after_update(site)                  masks are put on here
            on_step_end    begin, update, end   what the epoch that was reached asks for
        finish_model(model)                     after the last event of the run
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

from trainwright.config.arguments import TrainingArguments
from trainwright.core.callback import TrainerCallback
from trainwright.core.state import TrainerControl, TrainerState

#: Columns of a dataset whose names begin so go to a teacher alone.
TEACHER_COLUMNS = "distill_teacher:"
#: Epochs are fractions of whole steps; what is nearer than this is the same moment.
_SAME_MOMENT = 1e-6


@dataclass
class Site:
    """What modifiers work on: the model in training and what stands around it."""

    #: The module whose names the recipe uses: not compiled, not wrapped.
    model: Any
    optimizer: Any
    #: Optimizer steps in one of the recipe's epochs.
    steps_per_epoch: float
    #: ``(count) -> iterator``: puts the gradients of one training batch after the other into ``.grad``.
    #: Nothing of it stays: gradients, buffers, random numbers and the place in the data are as before.
    gradients: Callable[[int], Iterator[None]] | None = None
    #: ``({old: (new, kept)})``: parameters were replaced by others of another size; ``kept`` turns a tensor shaped like
    #: the old one into one shaped like the new. Optimizer, schedule and compiled code follow.
    rebuild: Callable[[dict[Any, tuple[Any, Callable[[Any], Any] | None]]], None] | None = None
    #: Held while weights are changed outside an update.
    changing: Callable[[], AbstractContextManager[Any]] = nullcontext
    #: ``(state) -> epoch``: where the run stands, in epochs of the recipe.
    epoch_of: Callable[[Any], float] = lambda state: state.epoch or 0.0
    #: Whether the last step was not finite, and so was not applied.
    was_bad: Callable[[], bool] = lambda: False
    #: Numbers for the log, by name; written with the next log entry.
    logs: dict[str, float] = field(default_factory=dict)
    #: ``(modifier, "begins" or "ends", epoch)``: hears of each modifier's start and end.
    tell: Callable[[Modifier, str, float], None] = lambda modifier, what, epoch: None
    #: ``(kind, message, **facts)``: writes into the event log.
    note: Callable[..., None] = lambda kind, message, **facts: None


@dataclass(frozen=True)
class Passes:
    """What a modifier needs that computes the loss of a micro-batch otherwise."""

    #: ``(inputs) -> (loss, outputs)``: a forward pass, and its mean loss.
    run: Callable[[Any], tuple[Any, Any]]
    #: ``(outputs, labels) -> loss``: of a pass that was made, with other labels.
    loss_of: Callable[[Any, Any], Any]
    #: Whether each position is compared with the label of the next one.
    shifts_labels: bool = False


@dataclass(kw_only=True, eq=False)
class Modifier(TrainerCallback):
    """Changes a training from ``start_epoch`` to ``end_epoch``; override what should happen.

    Epochs may be fractions. A ``start_epoch`` of -1 is the beginning, an ``end_epoch`` of -1 never comes. ``update`` is
    called at the start, then every ``update_frequency`` epochs (-1: after every step), and at the end. A modifier with
    arguments of its own declares them as fields of a dataclass and checks them in ``__post_init__``, or has an
    ``__init__`` that calls this one.

    >>> class Announce(Modifier):
    ...     def update(self, site, epoch):
    ...         print(f"epoch {epoch:g}")
    >>> modifier = Announce(start_epoch=1, end_epoch=2, update_frequency=0.5)
    >>> for step in range(12):
    ...     modifier.advance(Site(None, None, steps_per_epoch=4), step / 4)
    epoch 1
    epoch 1.5
    epoch 2
    """

    may_repeat = True
    #: Whether weights are zeros or rounded by it, so that a report shows what became of each layer.
    changes_weights = True
    #: Whether the model's own shape or number format changes: not known to the optimizer of a sharded model.
    changes_structure = False
    #: Whether it works on whole weights only, not on shards of them.
    needs_whole_tensors = False
    #: Whether other parameters take part in a step than before, or gradients are taken besides those of steps.
    changes_graph = False
    #: Why what it does to a batch is not what it does to the parts of one; None where it is.
    joins_samples: ClassVar[str | None] = None
    #: Whether it goes by the gradients of this process alone.
    one_process = False
    #: Whether this decides the learning rate; the run's own schedule then stays out of it.
    sets_learning_rate = False
    #: Set by the Trainer; a loop written by hand passes it with each call.
    site: Site | None = field(default=None, init=False, repr=False)
    #: The entry of a recipe that it was built from; None where it was made in Python.
    written_as: Any = field(default=None, init=False, repr=False)

    start_epoch: float = -1.0
    end_epoch: float = -1.0
    update_frequency: float = -1.0

    def __post_init__(self) -> None:
        start_epoch, end_epoch, update_frequency = self.start_epoch, self.end_epoch, self.update_frequency
        self.start_epoch, self.end_epoch = _number("start_epoch", start_epoch), _number("end_epoch", end_epoch)
        self.update_frequency = _number("update_frequency", update_frequency)
        if self.end_epoch != -1 and self.end_epoch < self.start_epoch:
            raise ValueError(
                f"end_epoch={end_epoch} comes before start_epoch={start_epoch}: exchange them, or use -1 for no end."
            )
        for name, value in (("start_epoch", self.start_epoch), ("end_epoch", self.end_epoch)):
            if value < 0 and value != -1:
                raise ValueError(f"{name}={value} must be 0 or more, or -1.")
        if self.update_frequency != -1 and self.update_frequency <= 0:
            raise ValueError(f"update_frequency={update_frequency} must be more than 0, or -1 for every step.")
        self.has_begun = self.has_ended = False
        #: Which interval of ``update_frequency`` the last update was in, and at which epoch it was.
        self._interval = -1
        self._updated_at = -1.0

    def prepare_model(self, model: Any) -> None:
        """Surgery before the optimizer is made; refuse here, with a ``ValueError``, what cannot work.

        Called for every training, so perhaps again for a model that was prepared before.
        """

    def restore_structure(self, model: Any, values: dict[str, Any]) -> None:
        """Give ``model`` the layers it had when ``values`` were saved; its weights are loaded after."""

    def extra_parameters(self) -> dict[str, Any]:
        """Parameters besides the model's that the optimizer should train, by name; asked after ``prepare_model``."""
        return {}

    def begin(self, site: Site, epoch: float) -> None:
        """``start_epoch`` has come."""

    def update(self, site: Site, epoch: float) -> None:
        """It is time; ``epoch`` is never past ``end_epoch``."""

    def end(self, site: Site, epoch: float) -> None:
        """``end_epoch`` has come, and the last update was made."""

    def resume(self, site: Site, epoch: float) -> None:
        """The run goes on from a checkpoint: put back what neither weights nor ``state_dict`` hold."""

    def on_parameters_replaced(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.replaced(kwargs["replaced"])

    def replaced(self, mapping: dict[Any, tuple[Any, Callable[[Any], Any] | None]]) -> None:
        """Another modifier put other parameters in place of some: ``{old: (new, kept)}`` as in ``Site.rebuild``."""

    def around_pass(self, site: Site, run: Callable[[], Any]) -> Any:
        """Forward and backward of one micro-batch: call ``run``, perhaps again, and return its loss."""
        return run()

    def compute_loss(self, passes: Passes, inputs: Any) -> tuple[Any, Any]:
        """The loss of one micro-batch and its outputs, by other passes than the one over ``inputs``."""
        return passes.run(inputs)

    def modify_loss(self, loss: Any, outputs: Any, inputs: Any) -> Any:
        """The loss of one micro-batch, a mean over its targets."""
        return loss

    def shape_gradients(self, site: Site) -> None:
        """Gradients of the whole step, before they are clipped."""

    def before_update(self, site: Site) -> None:
        """Just before the optimizer steps."""

    def after_update(self, site: Site) -> None:
        """Just after, also where a step that is not finite was left out."""

    def finish_model(self, model: Any) -> None:
        """Training is over: make permanent what should be."""

    @property
    def final_epoch(self) -> float:
        """From when on this modifier leaves the model's structure alone; before, no model is the best one."""
        return 0.0

    # ---- state: what a checkpoint holds

    def tensors_to_save(self) -> dict[str, Any]:
        """Tensors to find again after a resume, by name; not copies."""
        return {}

    def values_to_save(self) -> dict[str, Any]:
        """The same for what JSON can hold."""
        return {}

    def load_saved(self, tensors: dict[str, Any], values: dict[str, Any]) -> None:
        """Take up what :meth:`tensors_to_save` and :meth:`values_to_save` gave."""

    def state_dict(self) -> dict[str, Any]:
        progress = {
            "begun": self.has_begun,
            "ended": self.has_ended,
            "interval": self._interval,
            "updated_at": self._updated_at,
        }
        return {"tensors": self.tensors_to_save(), "values": {"progress": progress, "own": self.values_to_save()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        progress = state["values"]["progress"]
        self.has_begun, self.has_ended = progress["begun"], progress["ended"]
        self._interval, self._updated_at = progress["interval"], progress.get("updated_at", -1.0)
        self.load_saved(state["tensors"], state["values"]["own"])

    def forget(self) -> None:
        """A new run begins: nothing of an earlier one counts."""
        self.has_begun = self.has_ended = False
        self._interval, self._updated_at = -1, -1.0

    # ---- when

    @property
    def is_active(self) -> bool:
        """Whether the run is between start and end."""
        return self.has_begun and not self.has_ended

    def advance(self, site: Site, epoch: float) -> None:
        """Do what is due at ``epoch``."""
        if not self.has_begun and epoch >= self.start_epoch - _SAME_MOMENT:
            self.has_begun = True
            site.tell(self, "begins", epoch)
            self.begin(site, epoch)
        if not self.is_active:
            return
        is_over = self.end_epoch != -1 and epoch >= self.end_epoch - _SAME_MOMENT
        interval = self._interval_at(epoch)
        # A run that was stopped begins where its last step ended: that step's update was made.
        is_new_step = self.update_frequency == -1 and epoch > self._updated_at
        if is_over or interval > self._interval or is_new_step:
            self._interval, self._updated_at = interval, epoch
            self.update(site, min(epoch, self.end_epoch) if self.end_epoch != -1 else epoch)
        if is_over:
            self.has_ended = True
            self.end(site, epoch)
            site.tell(self, "ends", epoch)

    def _interval_at(self, epoch: float) -> int:
        """Counted from the start, so that steps which do not fit the frequency never add up to a drift."""
        if self.update_frequency == -1:
            return 0
        return int((epoch - max(self.start_epoch, 0.0) + _SAME_MOMENT) // self.update_frequency)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.site is not None:
            epoch = self._epoch(state)
            if self.has_begun:
                self.resume(self.site, epoch)
            with self.site.changing():
                self.advance(self.site, epoch)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.site is not None:
            with self.site.changing():
                self.advance(self.site, self._epoch(state))

    def _epoch(self, state: Any) -> float:
        assert self.site is not None
        return self.site.epoch_of(state)


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r} must be a number; leave it out for its default.") from None


def overriding(modifiers: list[Modifier], method: str) -> list[Modifier]:
    """Those that do something in ``method``: the others cost nothing."""
    return [m for m in modifiers if getattr(type(m), method) is not getattr(Modifier, method)]
