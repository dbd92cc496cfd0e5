"""What every part of the Trainer stands on: its attributes, its callbacks, its log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from torch import Tensor, nn

from trainwright.config.backends import Place
from trainwright.config.fields import ours
from trainwright.core.backend import Backend
from trainwright.core.callback import CallbackHandler
from trainwright.core.modifier import Modifier
from trainwright.core.results import speed_metrics
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.core.stops import LeavesAtOnce, StopRequests
from trainwright.data.worker_deaths import DeferredDeaths
from trainwright.engines.torch.engine import TorchEngine
from trainwright.engines.torch.memory import MemoryReport
from trainwright.engines.torch.strategies.base import Strategy


class Foundation:
    """Attributes that scripts and subclasses rely on, and the events and logs that all methods use.

    The Trainer is a chain of classes, one for each topic, and each uses only those before it: Foundation,
    ReportingMethods, ModuleMethods, DataMethods, OptimizationMethods, StepMethods, EvaluationMethods,
    ExactnessMethods, SavingMethods, RestoringMethods, HubMethods, BookkeepingMethods, FittingMethods, RunningMethods,
    RecipeMethods, Trainer.
    """

    args: Any
    #: None only until ``fit`` is given one.
    model: nn.Module = cast(Any, None)
    model_wrapped: nn.Module = cast(Any, None)
    model_init: Callable[..., nn.Module] | None
    processing_class: Any
    data_collator: Callable[[list[Any]], Any]
    train_dataset: Any
    eval_dataset: Any
    compute_metrics: Any
    compute_loss_func: Callable[..., Tensor] | None
    preprocess_logits_for_metrics: Callable[..., Any] | None
    optimizer: Any
    lr_scheduler: Any
    optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None
    state: TrainerState
    control: TrainerControl
    callback_handler: CallbackHandler
    engine: TorchEngine
    is_in_train: bool
    label_names: list[str]
    _memory: MemoryReport
    _tokens_at_start: int = 0
    #: Signals and time that may ask a training to stop.
    _stops: StopRequests | None = None
    #: Answers signals where no training runs.
    _answering: LeavesAtOnce | None = None
    #: Workers of loaders that died since the loop was last where it may be left.
    _deaths = DeferredDeaths()
    #: What a recipe changes in a training, in the order in which it acts.
    modifiers: list[Modifier] = []  # noqa: RUF012 - replaced, never changed
    #: Those that change the loss of a micro-batch, while a training runs.
    _loss_modifiers: list[Modifier] = []  # noqa: RUF012 - replaced, never changed
    #: The processes that take part, and how the model is spread over them.
    _backend: Backend
    strategy: Strategy

    def _place(self) -> Place:
        """Whose part of the data this process has: processes that compute layers together have the same."""
        together = ours(self.args, "tensor_parallel_size")
        return Place(self._backend.rank // together, self._backend.local_rank, self._backend.world_size // together)

    def _require_model(self) -> None:
        if self.model is None:
            raise ValueError(
                "Trainer needs a model: pass model=, or model_init=, a function that makes one, or give the model to "
                "fit(model, train, val)."
            )

    # ---- a subclass's own state

    def get_state(self) -> dict[str, Any]:
        """What a subclass wants to find again after a resume: tensors and JSON; saved with every checkpoint."""
        return {}

    def update_state(self, state: dict[str, Any]) -> None:
        """Take up what :meth:`get_state` returned when the checkpoint was saved."""

    def _recipe_text(self) -> str | None:
        """The recipe as it is saved beside the weights."""
        return None

    # ---- callbacks

    def add_callback(self, callback: Any) -> None:
        """Add a callback, or an instance of a callback class."""
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: Any) -> Any:
        """Remove and return the first callback of a class, or the instance."""
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: Any) -> None:
        """Remove the first callback of a class, or the instance."""
        self.callback_handler.remove_callback(callback)

    def _fire(self, event: str, **kwargs: Any) -> None:
        if self.callback_handler.listeners(event):
            self.callback_handler.call_event(event, self.args, self.state, self.control, **kwargs)

    def _leave_if_asked(self) -> None:
        """Leave the loop if a signal or the time asks for it, or a worker died; called where leaving is clean."""
        if self._deaths.error is not None and self.is_in_train:
            self._deaths.raise_it()
        if self._stops is not None and self.is_in_train and self._backend.world_size == 1:
            self._stops.raise_if_asked()

    # ---- logs

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Append ``logs`` to ``state.log_history`` and tell the callbacks."""
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch
        if self.args.include_num_input_tokens_seen != "no":
            logs["num_input_tokens_seen"] = self.state.num_input_tokens_seen
            if start_time is not None:
                tokens = self.state.num_input_tokens_seen - self._tokens_at_start
                logs.update(speed_metrics("train", start_time, num_tokens=tokens))
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.control.should_log = False
        # Callbacks may add to a log, change it, and leave out what should not be shown; results lose nothing by that.
        shown = dict(logs)
        self._fire("on_log", logs=shown)
        logs.update(shown)
