"""What a Trainer shows: attributes that read and write its setup, its callbacks, its metrics on screen and disk."""

from __future__ import annotations

import datetime
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
from trainwright.core.engine import Engine
from trainwright.core.files import replace_text
from trainwright.core.layout import Weights
from trainwright.core.modifier import Modifier
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.training.memory import micro_batch_size
from trainwright.training.recipe import final_epoch, recipe_epochs
from trainwright.training.run import TrainingRun
from trainwright.training.setup import Setup


class FromSetup:
    """An attribute of the Trainer that is a field of its setup."""

    def __init__(self, name: str | None = None) -> None:
        self._name = name

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = self._name or name

    def __get__(self, trainer: Any, owner: type[Any] | None = None) -> Any:
        assert self._name is not None
        return self if trainer is None else getattr(trainer._setup, self._name)

    def __set__(self, trainer: Any, value: Any) -> None:
        assert self._name is not None
        setattr(trainer._setup, self._name, value)


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
    compute_loss_func: Callable[..., Tensor] | None = FromSetup()  # type: ignore[assignment]
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
    _signature_columns: list[str] | None = FromSetup("signature_columns")  # type: ignore[assignment]
    can_return_loss: bool = FromSetup()  # type: ignore[assignment]
    label_smoother: float | None = FromSetup()  # type: ignore[assignment]
    model_accepts_loss_kwargs: bool = FromSetup()  # type: ignore[assignment]
    current_gradient_accumulation_steps: int = FromSetup()  # type: ignore[assignment]
    current_flos: float = FromSetup()  # type: ignore[assignment]
    modifiers: list[Modifier] = FromSetup()  # type: ignore[assignment]
    recipe: Any = FromSetup()
    teacher: Any = FromSetup()
    metadata_args: list[str] | None = FromSetup()  # type: ignore[assignment]
    hub_model_id: str | None = FromSetup()  # type: ignore[assignment]
    hp_name: Callable[[Any], str] | None = FromSetup()  # type: ignore[assignment]
    hp_search_backend: str | None = FromSetup()  # type: ignore[assignment]
    #: Scripts and subclasses ask.
    is_model_parallel = is_fsdp_enabled = is_deepspeed_enabled = False

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
