"""What lives with the Trainer: the model, the data, how both are run, and who listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from torch import Tensor, nn

from trainwright.checkpoint.delivery import CheckpointDelivery
from trainwright.checkpoint.writer_group import WriterGroup
from trainwright.config.arguments import TrainingArguments
from trainwright.config.backends import ProcessRank
from trainwright.config.fields import ours, say_which_names_are_taken
from trainwright.core.backend import Backend
from trainwright.core.callback import CallbackHandler
from trainwright.core.data_words import DataWords
from trainwright.core.engine import Engine, Portion
from trainwright.core.modifier import Modifier
from trainwright.core.module import StepPlan
from trainwright.core.phases import PhasePlan
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.core.stops import LeavesAtOnce
from trainwright.engines.torch.logged import Means
from trainwright.engines.torch.loss_groups import LossGroups
from trainwright.engines.torch.memory import MemoryReport
from trainwright.engines.torch.module import Module
from trainwright.engines.torch.targets import TargetCounter

if TYPE_CHECKING:
    from trainwright.recipes.language.records import Recipe
    from trainwright.training.run import TrainingRun

#: Filled before anybody reads it.
_LATER: Any = cast(Any, None)


@dataclass
class Calling:
    """How the model, and methods that a subclass overrides, want to be called; found out once."""

    target_counter: TargetCounter
    count_targets: Callable[[Any], Any]
    loss_outside_model: bool
    compute_loss_takes: frozenset[str]
    wants_count: bool
    training_step_is_own: bool
    training_step_takes_count: bool
    #: Whether it takes the count as its third argument, under another name.
    training_step_takes_third: bool
    prepares_each_input: bool
    autocast_is_own: bool
    loss_function_takes_count: bool
    #: Whether it compares each position with the label of the next one.
    shifts_for_loss: bool
    #: What an override of ``compute_loss`` expects ``num_items_in_batch`` to be multiplied by.
    count_factor: int


@dataclass
class EvaluationOptions:
    """What an evaluation that is going on does besides what its methods' arguments say."""

    #: Which of a Module's step methods is called: validation, test or predict.
    stage: str = "validation"
    #: Functions on a batch whose outputs are averaged.
    transforms: list[Callable[[Any], Any]] | None = None
    #: What a Module's step methods log.
    logged: Means = field(default_factory=Means)
    #: True for the metric's trial on one batch before training: nothing that callbacks should hear of.
    is_trial: bool = False
    #: Whether it was said that an evaluation has no labels.
    has_spoken: bool = False


class Trial(Protocol):
    """One training of a hyperparameter search."""

    trial: Any

    def report(self, metrics: dict[str, float], step: int) -> None:
        """Let the search stop a training that goes nowhere."""
        ...


@dataclass
class Setup:
    """Everything that a Trainer was given, and what was made of it; a training is a record of its own (``run``)."""

    #: The Trainer, for its methods that users may override; weak, so that one that is let go takes its memory along.
    hooks: Callable[[], Any]
    #: What was set about training, and the same object as the user gave it: a subclass may use our names otherwise.
    args: TrainingArguments = _LATER
    given_args: TrainingArguments = _LATER
    #: None only until ``fit`` is given one.
    model: nn.Module = _LATER
    model_wrapped: nn.Module = _LATER
    model_init: Callable[..., nn.Module] | None = None
    processing_class: Any = None
    data_collator: Callable[[list[Any]], Any] = _LATER
    train_dataset: Any = None
    eval_dataset: Any = None
    compute_metrics: Any = None
    compute_loss_func: Callable[..., Tensor] | None = None
    preprocess_logits_for_metrics: Callable[..., Any] | None = None
    optimizer: Any = None
    lr_scheduler: Any = None
    optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None = None
    #: Whether we made them, and may make them again; or the Module did.
    own_optimizer: bool = True
    own_scheduler: bool = True
    configured_by_module: bool = False
    place_model_on_device: bool = True
    #: What classes, amounts and columns are called.
    data_words: DataWords = field(default_factory=DataWords)
    #: The model, where it is a Module.
    module: Module | None = None
    calling: Calling = _LATER
    label_names: list[str] = field(default_factory=lambda: ["labels"])
    can_return_loss: bool = False
    label_smoother: float | None = None
    model_accepts_loss_kwargs: bool = False
    #: What a subclass has said of it, which counts more than the model's signature.
    loss_kwargs_by_subclass: bool | None = None

    #: The processes that take part, and what computes.
    backend: Backend = _LATER
    engine: Engine = _LATER
    callbacks: CallbackHandler = _LATER
    memory: MemoryReport = _LATER
    #: Takes checkpoints elsewhere, where a checkpointer was given.
    checkpointer: CheckpointDelivery | None = None
    #: Those who write with this process, where no process has all the weights.
    writers: WriterGroup | None = None
    #: Answers signals where no training runs.
    answering: LeavesAtOnce | None = None

    #: What a recipe changes in a training, in the order in which it acts.
    modifiers: list[Modifier] = field(default_factory=list)
    recipe: Recipe | None = None
    #: Which epochs have settings of their own.
    phases: PhasePlan | None = None
    teacher: Any = None
    metadata_args: list[str] | None = None
    #: Whether samples may carry columns that only a teacher takes.
    has_teacher: bool = False
    #: Those that change the loss of a micro-batch, while a training runs.
    loss_modifiers: list[Modifier] = field(default_factory=list)
    #: Those that have a pass made again.
    pass_modifiers: list[Modifier] = field(default_factory=list)
    #: Tells the loss apart by class or source, where that was asked for.
    loss_groups: LossGroups | None = None
    #: What the recipe's modifiers know, while a model in parts is saved.
    gathered_recipe_state: Any = None

    state: TrainerState = field(default_factory=TrainerState)
    control: TrainerControl = field(default_factory=TrainerControl)
    #: The training that is going on; scripts with a loop of their own set the flag themselves.
    run: TrainingRun | None = None
    is_in_train: bool = False
    evaluation: EvaluationOptions = field(default_factory=EvaluationOptions)
    #: The micro-batch that is being trained on, and how many its step has.
    portion: Portion | None = None
    current_gradient_accumulation_steps: int = 1
    default_step_ran: bool = False
    current_flos: float = 0
    #: How long the run that is being prepared is, for schedules and a Module's ``configure_optimizers``.
    total_steps: int | None = None
    step_plan: StepPlan | None = None

    #: The hyperparameter search that this training is a trial of.
    search: Trial | None = None
    hp_name: Callable[[Any], str] | None = None
    hp_search_backend: str | None = None
    hub_model_id: str | None = None
    upload: Any = None

    #: Loaders of evaluation sets whose workers are kept, by name; and the sets.
    eval_loaders: dict[str, Any] = field(default_factory=dict)
    loaded_eval_sets: dict[str, Any] = field(default_factory=dict)
    #: Columns of a dataset that are not dropped; None until somebody asks, or a subclass sets them.
    signature_columns: list[str] | None = None
    #: Said once: of columns that are dropped, of what depends on how a batch is cut, of a step of one's own.
    columns_said: set[str] = field(default_factory=set)
    piece_effects_were_noted: bool = False
    own_step_was_noted: bool = False

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process; the Trainer that takes it up in another makes its own."""
        return {**vars(self), "engine": None, "hooks": None, "run": None, "is_in_train": False, "eval_loaders": {}}

    def take_arguments(self, args: TrainingArguments) -> None:
        """Go by other arguments from now on."""
        self.given_args, self.args = args, ours(args)
        say_which_names_are_taken(type(args))

    def fire(self, event: str, **kwargs: object) -> None:
        """Tell the listeners of ``event``; they may set switches on the control."""
        if self.callbacks.heard[event]:
            self.callbacks.call_event(event, self.given_args, self.state, self.control, **kwargs)


def data_rank(setup: Setup) -> ProcessRank:
    """Whose part of the data this process has: processes that compute layers together have the same."""
    together = setup.args.tensor_parallel_size
    backend = setup.backend
    return ProcessRank(backend.rank // together, backend.local_rank, backend.world_size // together)


def require_model(setup: Setup) -> None:
    """Raise where no model was given yet."""
    if setup.model is None:
        raise ValueError(
            "Trainer needs a model: pass model=, or model_init=, a function that makes one, or give the model to "
            "fit(model, train, val)."
        )
