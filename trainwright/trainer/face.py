"""What a Trainer shows: attributes that read and write its setup, its metrics on screen and disk, a look beforehand."""

from __future__ import annotations

import datetime
import inspect
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from trainwright.config.arguments import TrainingArguments
from trainwright.config.run_directory import run_directory
from trainwright.config.secrets import redacted_values
from trainwright.core.callback import CallbackHandler
from trainwright.core.data_words import DataWords
from trainwright.core.engine import Engine
from trainwright.core.files import replace_text
from trainwright.core.layout import Weights
from trainwright.core.modifier import Modifier
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.engines.torch.loss_functions.choosing import chosen_loss
from trainwright.looking.batch import BatchView, show_batch
from trainwright.looking.found_rates import LearningRates
from trainwright.looking.rates import lr_find
from trainwright.looking.summary import Summary, summary
from trainwright.trainer.attributes import Found, FromSetup, StageMemory
from trainwright.trainer.start_up import leaves_at_once
from trainwright.training.given_modifiers import refuse_late_modifier
from trainwright.training.memory import micro_batch_size
from trainwright.training.recipe import final_epoch, recipe_epochs
from trainwright.training.run import TrainingRun
from trainwright.training.setup import Setup
from trainwright.training.step import take_loss_function, take_loss_kwargs


class Face:
    """Attributes that scripts and subclasses rely on; each is kept once, in the setup."""

    _setup: Setup
    #: The training that is going on, or the last one.
    _run: TrainingRun | None = None

    model: nn.Module = FromSetup()  # type: ignore[assignment]
    model_wrapped: nn.Module = FromSetup()  # type: ignore[assignment]
    model_init: Callable[..., nn.Module] | None = FromSetup()  # type: ignore[assignment]
    processing_class: Any = FromSetup()
    data_collator: Callable[[list[Any]], Any] = FromSetup()  # type: ignore[assignment]
    train_dataset: Any = FromSetup()
    eval_dataset: Any = FromSetup()
    compute_metrics: Any = FromSetup()
    preprocess_logits_for_metrics: Callable[..., Any] | None = FromSetup()  # type: ignore[assignment]
    optimizer: Any = FromSetup()
    lr_scheduler: Any = FromSetup()
    optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None = FromSetup()  # type: ignore[assignment]
    is_in_train: bool = FromSetup()  # type: ignore[assignment]
    state: TrainerState = FromSetup()  # type: ignore[assignment]
    control: TrainerControl = FromSetup()  # type: ignore[assignment]
    callback_handler: CallbackHandler = FromSetup("callbacks")  # type: ignore[assignment]
    engine: Engine = FromSetup()  # type: ignore[assignment]
    place_model_on_device: bool = FromSetup()  # type: ignore[assignment]
    label_names: list[str] = FromSetup()  # type: ignore[assignment]
    #: Names of classes and columns, and the unit of amounts, for reports and whoever shows data.
    data_words: DataWords = FromSetup()  # type: ignore[assignment]
    _signature_columns: list[str] | None = FromSetup("signature_columns")  # type: ignore[assignment]
    can_return_loss: bool = FromSetup()  # type: ignore[assignment]
    label_smoother: float | None = FromSetup()  # type: ignore[assignment]
    current_gradient_accumulation_steps: int = FromSetup()  # type: ignore[assignment]
    current_flos: float = FromSetup()  # type: ignore[assignment]
    modifiers: list[Modifier] = FromSetup()  # type: ignore[assignment]
    recipe: Any = FromSetup()
    teacher: Any = FromSetup()
    metadata_args: list[str] | None = FromSetup()  # type: ignore[assignment]
    hub_model_id: str | None = FromSetup()  # type: ignore[assignment]
    hp_name: Callable[[Any], str] | None = FromSetup()  # type: ignore[assignment]
    hp_search_backend: str | None = FromSetup()  # type: ignore[assignment]
    #: Loaders of the evaluation sets, by name, while their workers are kept (``dataloader_persistent_workers``).
    _eval_dataloaders: dict[str, Any] = FromSetup("eval_loaders")  # type: ignore[assignment]
    #: DeepSpeed's engine while it trains the model, else None.
    deepspeed: Any = Found(lambda trainer: trainer.model_wrapped if trainer.is_deepspeed_enabled else None)
    neftune_noise_alpha: Any = Found(lambda trainer: trainer.args.neftune_noise_alpha)
    #: Whether the schedule is the Trainer's own, and not one that it was given.
    _created_lr_scheduler: Any = Found(
        lambda trainer: trainer._setup.own_scheduler and trainer.lr_scheduler is not None
    )
    #: The last step whose loss was logged, and the losses of all steps so far, added up.
    _globalstep_last_logged: Any = Found(lambda trainer: last_logged(trainer.state))
    _total_loss_scalar: Any = Found(lambda trainer: 0.0 if trainer._run is None else total_loss(trainer))
    #: What a copied ``evaluate`` or ``predict`` calls around its work.
    _memory_tracker: Any = Found(lambda trainer: StageMemory(trainer._setup.memory))
    #: Scripts and subclasses ask.
    is_model_parallel = is_fsdp_enabled = is_deepspeed_enabled = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let a subclass declare ``args = None`` and its like: in transformers the constructor's value hides it."""
        super().__init_subclass__(**kwargs)
        for name, kept in vars(Face).items():
            is_kept = isinstance(kept, FromSetup) or (isinstance(kept, property) and kept.fset is not None)
            if is_kept and not hasattr(type(inspect.getattr_static(cls, name)), "__get__"):
                setattr(cls, name, kept)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        trainer = super().__new__(cls)
        # Before the constructor: a subclass may set attributes before it calls ours.
        trainer._own(Setup(hooks=weakref.ref(trainer)))
        return trainer

    def _own(self, setup: Setup) -> None:
        self._setup = setup
        # Engine and setup know each other: without this, memory would wait for the garbage collector.
        weakref.finalize(self, vars(setup).clear).atexit = False  # type: ignore[missing-attribute]

    def __getstate__(self) -> dict[str, Any]:
        """All but what belongs to this process: a Trainer may be sent to another, by Ray say, and trains there."""
        return {**vars(self), "_run": None, "accelerator": None}

    @property
    def args(self) -> TrainingArguments:
        """What was set about training."""
        return self._setup.given_args

    @args.setter
    def args(self, args: TrainingArguments) -> None:
        self._setup.take_arguments(args)

    @property
    def compute_loss_func(self) -> Callable[..., Tensor] | None:
        """What computes the loss from outputs and labels, in place of the model."""
        return self._setup.compute_loss_func

    @compute_loss_func.setter
    def compute_loss_func(self, function: Callable[..., Tensor] | None) -> None:
        take_loss_function(self._setup, chosen_loss(function))

    @property
    def model_accepts_loss_kwargs(self) -> bool:
        """Whether the loss is divided by ``num_items_in_batch``; a subclass sets it to False where its own is not."""
        return self._setup.model_accepts_loss_kwargs

    @model_accepts_loss_kwargs.setter
    def model_accepts_loss_kwargs(self, accepts: bool) -> None:
        take_loss_kwargs(self._setup, accepts)

    @property
    def strategy(self) -> Weights:
        """How the model is spread over the processes."""
        return self._setup.engine.weights

    @property
    def micro_batch_size(self) -> int:
        """Samples of a training batch that run at once at present."""
        return self.args.train_batch_size if self._run is None else micro_batch_size(self._run)

    @property
    def recipe_epochs(self) -> float:
        """When the last modifier that has an end ends, in whole epochs; 0 where none has one."""
        return recipe_epochs(self._setup)

    @property
    def final_epoch(self) -> float:
        """When the last modifier has finished changing what the model is."""
        return final_epoch(self._setup)

    def is_local_process_zero(self) -> bool:
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        return self.args.process_index == 0

    # ---- callbacks

    def add_callback(self, callback: Any) -> None:
        """Add a callback, or an instance of a callback class."""
        refuse_late_modifier(callback)
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: Any) -> Any:
        """Remove and return the first callback of a class, or the instance."""
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: Any) -> None:
        """Remove the first callback of a class, or the instance."""
        self.callback_handler.remove_callback(callback)

    # ---- metrics, as every example script ends with them

    def metrics_format(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Readable values: times as h:mm:ss, memory in MB, floats with four digits."""
        return {name: _readable(name, value) for name, value in metrics.items()}

    def log_metrics(self, split: str, metrics: dict[str, Any]) -> None:
        """Print a block of metrics, aligned."""
        if not self.is_world_process_zero():
            return
        shown = self.metrics_format(metrics)
        name_width = max((len(name) for name in shown), default=0)
        value_width = max((len(str(value)) for value in shown.values()), default=0)
        print(f"***** {split} metrics *****")
        for name in sorted(shown):
            print(f"  {name:<{name_width}} = {shown[name]!s:>{value_width}}")

    def save_metrics(self, split: str, metrics: dict[str, Any], combined: bool = True) -> None:
        """Write ``<split>_results.json`` and, if ``combined``, merge into ``all_results.json``."""
        if not self.is_world_process_zero():
            return
        folder = run_directory(self.args)
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(folder / f"{split}_results.json", metrics)
        if combined:
            everything = folder / "all_results.json"
            stored = json.loads(everything.read_text()) if everything.is_file() else {}
            _write_json(everything, stored | metrics)

    def save_state(self) -> None:
        """Write ``trainer_state.json`` into the output directory."""
        if self.is_world_process_zero():
            folder = run_directory(self.args)
            folder.mkdir(parents=True, exist_ok=True)
            self.state.save_to_json(folder / "trainer_state.json")

    # ---- before a training; nothing of it stays

    @leaves_at_once("looking at the data")
    def show_batch(self, rows: int = 8, *, tokenizer: Any = None) -> BatchView:
        """The first training batch as the model sees it: print it, or let a notebook show it.

        ``tokenizer`` decodes texts where the Trainer has none of its own (``processing_class``).

        Text is decoded and what is trained of it (labels other than -100) is marked, images are as augmentation left
        them, tables are rows. The training still gets this batch, and the random numbers that it would have had.

        >>> import torch
        >>> from trainwright import Trainer, TrainingArguments
        >>> data = [(torch.tensor([float(i), 1.0]), torch.tensor(i % 2)) for i in range(8)]
        >>> args = TrainingArguments(
        ...     "runs/example", per_device_train_batch_size=4, train_sampling_strategy="sequential"
        ... )
        >>> print(Trainer(torch.nn.Linear(2, 2), args, train_dataset=data).show_batch(rows=2))
        The first batch: 4 samples
          inputs           4x2 float32, 0 to 3
          labels           4 int64, 0 to 1
            0  inputs [0, 1]  -> 0
            1  inputs [1, 1]  -> 1
               and 2 more
        """
        return show_batch(self._setup, rows, tokenizer)

    @leaves_at_once("looking at the model")
    def summary(self, depth: int = 2) -> Summary:
        """Layers, parameters, and about how many operations and how much memory a step takes; nothing is trained.

        ``depth`` is the number of levels below the outermost layers. The numbers are in its attributes too.

        >>> import torch
        >>> from trainwright import Trainer, TrainingArguments
        >>> args = TrainingArguments("runs/example", per_device_train_batch_size=4)
        >>> data = [(torch.ones(2), torch.tensor(0))] * 8
        >>> found = Trainer(torch.nn.Linear(2, 2), args, train_dataset=data).summary()
        >>> found.parameters, found.trained, found.flops_per_sample
        (6, 6, 16.0)
        """
        return summary(self._setup, depth)

    @leaves_at_once("looking for a learning rate")
    def lr_find(self, least: float = 1e-7, greatest: float = 1.0, steps: int = 100) -> LearningRates:
        """Train a copy with a rate that grows from ``least`` to ``greatest``, and say at which its loss falls fastest.

        It stops where the loss has grown to four times its least. Weights, optimizer, data and random numbers of this
        Trainer stay as they are, so a training afterwards is the same to the last bit; for a while there are two
        models in memory. Callbacks are left out.

        >>> import torch
        >>> from trainwright import Trainer, TrainingArguments
        >>> data = [(torch.tensor([i / 8, 1.0]), torch.tensor(i % 2)) for i in range(16)]
        >>> found = Trainer(torch.nn.Linear(2, 2), TrainingArguments("runs/example"), train_dataset=data).lr_find()
        >>> len(found.rates) == len(found.losses)
        True
        """
        return lr_find(self._setup, least, greatest, steps)


def last_logged(state: TrainerState) -> int:
    """The last step whose loss was logged."""
    return next((entry["step"] for entry in reversed(state.log_history) if "loss" in entry), 0)


def total_loss(trainer: Face) -> float:
    """Losses of all steps so far, added up. Waits for the device."""
    return trainer.engine.meter.overall() * trainer.state.global_step


def _readable(name: str, value: Any) -> Any:
    if "_mem_" in name:
        return f"{value >> 20}MB"
    if "_runtime" in name:
        return str(datetime.timedelta(seconds=int(value)))
    if name == "total_flos":
        return f"{int(value) >> 30}GF"
    return round(value, 4) if isinstance(value, float) else value


def _write_json(path: Path, values: dict[str, Any]) -> None:
    replace_text(path, json.dumps(redacted_values(values), indent=4, sort_keys=True) + "\n")
