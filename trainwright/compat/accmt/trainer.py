"""ACCMT's Trainer: it reads the arguments, and ``trainwright.Trainer`` does the work."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.callbacks.progress import PrinterCallback
from trainwright.checkpoint.directory import list_checkpoints, newest_good
from trainwright.compat.accmt.adapter import AcceleratedModule
from trainwright.compat.accmt.callbacks import CallbackEvents, EventsBridge
from trainwright.compat.accmt.data import check_train_choices, data_choices, training_data, validation_data
from trainwright.compat.accmt.hyperparameters import HyperParameters, read_config
from trainwright.compat.accmt.logs import InTheirWords, ValidationBatches
from trainwright.compat.accmt.loop import Loop, prepared_teacher
from trainwright.compat.accmt.metrics import metrics_by_set
from trainwright.compat.accmt.modules import AcceleratorModule, attach_run, is_extended, registered_models
from trainwright.compat.accmt.monitor import Monitor
from trainwright.compat.accmt.savings import keepers, saving_modes
from trainwright.compat.accmt.settings import Settings, native_settings, split_more
from trainwright.compat.accmt.status import StatusKeeper, TrainingState
from trainwright.compat.accmt.strategies import launched
from trainwright.compat.accmt.tracker import tracking_settings
from trainwright.config import TrainingArguments
from trainwright.config.warnings import TrainwrightWarning
from trainwright.core.results import TrainOutput
from trainwright.training.keep_best import KeepBest

logger = logging.getLogger("trainwright")


class Trainer:
    """Trains an :class:`AcceleratorModule`.

    Arguments are those of ACCMT, with its defaults; ``docs/from-accmt.md`` has them beside the native ones. What is
    given beyond them is an argument of later versions (``patience``, ``metrics``, ``callbacks``, ``max_checkpoints``,
    ...) or goes to the tracker that takes it (``run_name``, ``tags``, ...).

    >>> from torch.nn import functional as F
    >>> class Line(AcceleratorModule):
    ...     def __init__(self):
    ...         self.model = nn.Linear(1, 1)
    ...     def step(self, batch):
    ...         x, y = batch
    ...         return F.mse_loss(self.model(x), y)
    >>> data = [(torch.tensor([x]), torch.tensor([2 * x])) for x in (0.0, 1.0, 2.0, 3.0)]
    >>> hps = {"epochs": 2, "batch_size": 2, "optim": {"type": "SGD", "lr": 0.1}}
    >>> trainer = Trainer(hps, model_path="models/line", verbose=False)
    >>> trainer.fit(Line(), data, data).global_step
    4
    >>> (trainer.model_path / "pytorch_model.bin").is_file()
    True
    """

    def __init__(
        self,
        hps_config: str | dict[str, Any] | HyperParameters,
        model_path: str,
        track_name: str | None = None,
        checkpoint: str | None = None,
        resume: bool | None = False,
        model_saving: str | list[str] | None = "best_valid_loss",
        evaluate_every_n_steps: int | None = None,
        checkpoint_every: str | None = "epoch",
        logging_dir: str = "logs",
        log_with: object = None,
        log_every: int = 1,
        grad_accumulation_steps: int | None = None,
        clip_grad: float | None = None,
        set_to_none: bool = True,
        shuffle_train: bool = True,
        shuffle_validation: bool = False,
        sampler: object = None,
        model_saving_below: float | None = None,
        model_saving_aboce: float | None = None,
        collate_fn: object = None,
        max_shard_size: str = "10GB",
        safe_serialization: bool = False,
        compile: bool = False,
        train_loss_metric_name: str = "train_loss",
        val_loss_metric_name: str = "val_loss",
        dataloader_pin_memory: bool = True,
        dataloader_num_workers: int = 0,
        report_loss_after_eval: bool = True,
        handlers: object = None,
        eval_when_finish: bool = True,
        eval_when_start: bool = False,
        verbose: bool = True,
        monitor: object = None,
        model_saving_above: float | None = None,
        **kwargs: object,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "kwargs")}
        later, self._tracker_options, needless = split_more(kwargs)
        self._settings = settings = Settings(**given, later=later)
        self.hps = HyperParameters.from_config(hps_config)
        saving_modes(model_saving)
        if needless and settings.verbose:
            _say_needless(needless)
        self._metrics = metrics_by_set(later.metrics)
        self._events = CallbackEvents(later.all_callbacks)
        self._tracking = tracking_settings(settings, self._tracker_options)
        self._monitor = Monitor.of(monitor)
        self.model_path, self.checkpoint_path = settings.model_folder, settings.checkpoint_folder
        self.module: AcceleratorModule | None = None
        self._keeper = StatusKeeper()
        self._kept: list[KeepBest] = []
        self._native: Loop | None = None

    @classmethod
    def from_config(
        cls,
        config: str | dict[str, Any],
        log_with: Any = None,
        sampler: Any = None,
        collate_fn: Any = None,
        **more: Any,
    ) -> Trainer:
        """A Trainer whose arguments stand in a file (YAML, JSON) or dict: below ``trainer``, with ``hps`` beside it."""
        return cls(**trainer_arguments(config), log_with=log_with, sampler=sampler, collate_fn=collate_fn, **more)

    # ---- training

    def fit(
        self,
        module: AcceleratorModule | str | tuple[str, Any],
        train_dataset: Any = None,
        val_dataset: Any = None,
        **kwargs: Any,
    ) -> TrainOutput:
        """Train ``module``, or a transformers model by name or (name, class); ``kwargs`` go to ``from_pretrained``."""
        module = as_module(module, kwargs)
        train = training_data(module, train_dataset)
        with self._as_loud_as_asked():
            check_train_choices(self._settings, train)
            wanted = self._wanted_checkpoint()
            native = self._prepared(module, val_dataset, wanted)
            with prepared_teacher(module.teacher, native.args):
                output = native.fit(train=train, resume_from_checkpoint=wanted)
            if wanted is not None and native.state.global_step == self._keeper.first_step:
                logger.info("%s is finished already: nothing was left to train.", wanted)
        return output

    def evaluate(
        self, module: AcceleratorModule | str | tuple[str, Any], dataset: Any, **kwargs: Any
    ) -> dict[str, float]:
        """Loss and metrics of ``module`` over ``dataset``, by its ``test_step`` or else ``validation_step``."""
        module = as_module(module, kwargs)
        with self._as_loud_as_asked():
            data, _ = validation_data(module, dataset)
            if data is None:
                raise ValueError("evaluate needs data: pass a data set.")
            native = self._prepared(module, None)
            with prepared_teacher(module.teacher, native.args), native.told_of_evaluation():
                found = native.test(data)
        words = self._words(list(data) if isinstance(data, Mapping) else None)
        return words.results({f"eval_{name.removeprefix('test_')}": value for name, value in found.items()})

    @property
    def status_dict(self) -> dict[str, Any]:
        """Where the run stands."""
        return self._keeper.status

    @property
    def state(self) -> TrainingState:
        """Where the run stands, in the names of later versions."""
        return TrainingState(self._keeper, lambda: self._native, self._patience_left)

    def log(self, values: Mapping[str, Any]) -> None:
        """Log ``values`` now."""
        if self._native is None or not self._native.is_in_train:
            raise ValueError("Trainer.log() works while fit() runs.")
        self._native.log({name: float(value) for name, value in values.items()})

    def _patience_left(self) -> int | None:
        left = [keeper.patience - keeper.times_worse for keeper in self._kept if keeper.patience is not None]
        return min(left, default=None)

    # ---- building

    def _prepared(self, module: AcceleratorModule, val_dataset: object, checkpoint: str | None = None) -> Loop:
        """The native Trainer for ``module``, ready to run."""
        validation, keys = validation_data(module, val_dataset)
        sets = list(validation) if isinstance(validation, dict) else None
        self._keeper = keeper = StatusKeeper()
        keeper.sets, self.module = sets, module
        validates = validation is not None
        if validates and not module.can_validate:
            raise ValueError(
                f"{type(module).__name__} has no validation_step: define it (or step), or fit without val_dataset."
            )
        args = self._arguments(validates, checkpoint)
        self._kept = keepers(
            self._settings,
            metrics=self._metrics,
            sets=sets,
            validates=validates,
            notes=lambda: keeper.with_judged(self._kept),
            model=lambda: module.model,
        )
        batches = ValidationBatches(self._settings) if not self._settings.report_loss_after_eval else None
        adapter = AcceleratedModule(
            module,
            self.hps,
            status=keeper.status,
            metrics=self._metrics,
            events=self._events,
            clip=args.max_grad_norm,
            validation_batch=None if batches is None else batches.add,
        )
        callbacks: list[Any] = [
            keeper,
            *self._kept,
            EventsBridge(self._events),
            self._monitor.native(),
            *([batches] if batches else []),
        ]
        native = Loop(
            adapter,
            args,
            choices=data_choices(self._settings, module),
            events=self._events,
            callbacks=[*callbacks, self._words(sets)],
            test_batch_size=self.hps.batch_sizes[2],
            keys=keys,
        )
        native.eval_dataset = validation
        if batches is not None:
            batches.log = native.log
        if not self._settings.verbose:
            native.remove_callback(PrinterCallback)
        self._native = native
        attach_run(module, RunOfModule(self, native, adapter))
        self._events.introduce(module, self, self.state)
        return native

    def _words(self, sets: list[str] | None) -> InTheirWords:
        return InTheirWords(self._settings, sets)

    def _arguments(self, validates: bool, checkpoint: str | None) -> TrainingArguments:
        seed = _seed_of(checkpoint)
        settings = native_settings(self._settings, self.hps, validates=validates, seed=seed)
        return TrainingArguments(**settings, **self._tracking, **launched())

    def _wanted_checkpoint(self) -> str | None:
        """What to resume from; ``resume=True`` needs a checkpoint."""
        folder, resume = self.checkpoint_path, self._settings.resume
        if resume is False:
            return None
        found = newest_good(folder)
        if found is not None:
            return str(found)
        if list_checkpoints(folder):
            raise ValueError(f"Every checkpoint in {folder} is damaged; `trainwright verify {folder}` says how.")
        if resume:
            raise FileNotFoundError(
                f"resume=True, and {folder} holds no checkpoint: pass resume=None to begin anew then."
            )
        return None

    @contextmanager
    def _as_loud_as_asked(self) -> Iterator[None]:
        """``verbose=False``: no notes and no warnings, only errors."""
        if self._settings.verbose:
            yield
            return
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            logger.setLevel(level)


class RunOfModule:
    """What a module reaches of its training."""

    def __init__(self, trainer: Trainer, native: Loop, adapter: AcceleratedModule) -> None:
        self._native, self._adapter = native, adapter
        self.accelerator = native.accelerator
        self.status, self.training_state = trainer.status_dict, trainer.state
        self.log_every = trainer._settings.log_every

    @property
    def device(self) -> torch.device:
        return self._native.args.device

    def log(self, values: Mapping[str, Any], *, instant: bool) -> None:
        for name, value in values.items():
            if not instant:
                self._adapter.log(name, value)
        if instant:
            self._native.log({name: float(value) for name, value in values.items()})

    def backward(self, loss: Tensor) -> None:
        self._adapter.backward(loss)


def as_module(module: Any, kwargs: dict[str, Any]) -> AcceleratorModule:
    """``module``, or one around the transformers model that it names."""
    if isinstance(module, str):
        return AcceleratorModule.from_hf(module, **kwargs)
    if isinstance(module, tuple) and len(module) == 2:
        return AcceleratorModule.from_hf(module[0], module[1], **kwargs)
    if not isinstance(module, AcceleratorModule):
        raise ValueError(
            f"fit takes an AcceleratorModule, the name of a transformers model, or (name, class), not a "
            f"{type(module).__name__}."
        )
    if kwargs:
        raise ValueError(f"{sorted(kwargs)} would go to from_pretrained, and the module is there already.")
    if not isinstance(getattr(module, "model", None), nn.Module):
        raise ValueError(f"{type(module).__name__} has no self.model: put the torch.nn.Module there in __init__.")
    if registered_models(module) and not is_extended(module):
        raise ValueError(
            f"{type(module).__name__} registers further models, whose optimizers somebody must step: derive it from "
            "ExtendedAcceleratorModule."
        )
    return module


def trainer_arguments(config: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a Trainer that a configuration holds."""
    content = dict(config) if isinstance(config, Mapping) else read_config(Path(config))
    where = "config" if isinstance(config, Mapping) else str(config)
    values = content.get("trainer", {key: value for key, value in content.items() if key != "hps"})
    if not isinstance(values, Mapping):
        raise ValueError(f"{where}: trainer must be a mapping of the Trainer's arguments, not {values!r}.")
    arguments = dict(values)
    if "hps" in content:
        arguments.setdefault("hps_config", {"hps": content["hps"]})
    for needed in ("hps_config", "model_path"):
        if needed not in arguments:
            raise ValueError(f"{where}: {needed} is missing.")
    return arguments


def _seed_of(checkpoint: str | None) -> int:
    """The seed that the script has set, if any (torch begins every process with the same); a resumed run has its own.

    ACCMT has no argument for it, so a resumed run cannot ask for another.
    """
    if checkpoint is not None:
        saved = read_config(Path(checkpoint) / "config.yaml").get("seed")
        if isinstance(saved, int):
            return saved
    return torch.initial_seed() % 2**31


def _say_needless(names: list[str]) -> None:
    warnings.warn(f"{', '.join(names)} change nothing here: leave them out.", TrainwrightWarning, stacklevel=3)
