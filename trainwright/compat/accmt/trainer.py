"""ACCMT's Trainer: it reads the arguments, and ``trainwright.Trainer`` does the work."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from trainwright.callbacks.progress import PrinterCallback
from trainwright.compat.accmt.adapter import AcceleratedModule
from trainwright.compat.accmt.artifacts import Artifacts
from trainwright.compat.accmt.asynchronous.following import follow, wait_for_training
from trainwright.compat.accmt.asynchronous.groups import this_group
from trainwright.compat.accmt.asynchronous.handing_over import HandingOver
from trainwright.compat.accmt.asynchronous.measuring import Measuring
from trainwright.compat.accmt.asynchronous.queue import EvaluationQueue, queue_folder
from trainwright.compat.accmt.asynchronous.settings import set_for_two_groups
from trainwright.compat.accmt.callbacks import CallbackEvents, EventsBridge
from trainwright.compat.accmt.data import check_train_choices, data_choices, training_data, validation_data
from trainwright.compat.accmt.debugging import debug_level, set_for_debugging
from trainwright.compat.accmt.evaluation import EvaluationOptions, report
from trainwright.compat.accmt.hyperparameters import HyperParameters
from trainwright.compat.accmt.logs import InTheirWords, ValidationBatches
from trainwright.compat.accmt.loop import Loop, prepared_teacher, same_modes_after
from trainwright.compat.accmt.loudness import as_loud_as_asked
from trainwright.compat.accmt.metrics import check_names, metrics_by_set
from trainwright.compat.accmt.modules import AcceleratorModule, attach_run
from trainwright.compat.accmt.monitor import Monitor
from trainwright.compat.accmt.resuming import seed_of, wanted_checkpoint
from trainwright.compat.accmt.run_of_module import RunOfModule, as_module
from trainwright.compat.accmt.savings import Kept, Saving, keepers, registered_saving, saving_modes
from trainwright.compat.accmt.settings import (
    Settings,
    checkpoint_only_where_it_acts,
    native_settings,
    say_needless,
    split_more,
    trainer_arguments,
)
from trainwright.compat.accmt.status import StatusKeeper, TrainingState
from trainwright.compat.accmt.strategies import launched
from trainwright.compat.accmt.this_process import ThisProcess
from trainwright.compat.accmt.timings import timings
from trainwright.compat.accmt.tracker import tracking_settings
from trainwright.config import TrainingArguments
from trainwright.core.results import TrainOutput
from trainwright.data.curriculum import Curriculum

logger = logging.getLogger("trainwright")


class Trainer:
    """Trains an :class:`AcceleratorModule`.

    Arguments are those of ACCMT, with its defaults; ``docs/from-accmt.md`` has them beside the native ones. What is
    given beyond them is an argument of later versions (``patience``, ``metrics``, ``callbacks``, ``max_checkpoints``,
    ...) or goes to the tracker that takes it (``run_name``, ``tags``, ...).

    >>> import torch
    >>> from torch import nn
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

    #: Where it is told: that of the training whose weights are evaluated here.
    _seed: int | None = None

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
        tracking = tracking_settings(settings, self._tracker_options)
        self._debug_level = debug_level()
        set_for_debugging(settings, self._debug_level)
        self._group = set_for_two_groups(settings, this_group())
        is_told = not self._debug_level and not self._only_evaluates
        self._tracking: dict[str, Any] = tracking if is_told else {"report_to": "none"}
        say_needless(needless if settings.verbose else [])
        self._metrics = metrics_by_set(later.metrics)
        self._events = CallbackEvents([*later.all_callbacks, *timings()])
        self._monitor = Monitor.of(monitor)
        self.model_path, self.checkpoint_path = settings.model_folder, settings.checkpoint_folder
        self.module: AcceleratorModule | None = None
        self._keeper = StatusKeeper()
        self._kept: list[Kept] = []
        self._registered: list[Saving] = []
        self._artifacts = Artifacts()
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
        named = {"log_with": log_with, "sampler": sampler, "collate_fn": collate_fn}
        return cls(**trainer_arguments(config, {k: value for k, value in named.items() if value is not None} | more))

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
        if self._only_evaluates:
            return self._evaluate_elsewhere(module, val_dataset)
        train = training_data(module, train_dataset)
        with as_loud_as_asked(self._settings.verbose):
            check_train_choices(self._settings, train)
            wanted = wanted_checkpoint(self.checkpoint_path, self._settings.resume)
            native = self._prepared(module, None if self._debug_level >= 5 else val_dataset, wanted)
            if native.eval_dataset is not None:
                self._hand_over_evaluations(native)
            train = native.in_own_batches(train, self._settings.later.batch_samplers[0], trains=True)
            if isinstance(train, Curriculum) and self.hps.max_steps is not None:
                self._keeper.stage_ends = list(accumulate(stage.steps for stage in train.stages(self.hps.max_steps)))
            with prepared_teacher(module.teacher, native.args):
                output = native.fit(train=train, resume_from_checkpoint=wanted)
            if wanted is not None and native.state.global_step == self._keeper.first_step:
                logger.info("%s is finished already: nothing was left to train.", wanted)
        return output

    @property
    def _only_evaluates(self) -> bool:
        return self._group is not None and not self._group.trains

    def _hand_over_evaluations(self, native: Loop) -> None:
        """Where another group of processes evaluates: let it."""
        queue = EvaluationQueue(queue_folder(self.model_path))
        if self._group is not None:
            tools, keeps = Measuring(native, self._keeper, self._kept), self._debug_level < 3
            native.elsewhere = HandingOver(tools, queue, self._group, keeps_results=keeps)
            native.add_callback(native.elsewhere)
        elif self._settings.resume is not False:
            queue.refuse_if_some_wait()

    def _evaluate_elsewhere(self, module: AcceleratorModule, val_dataset: object) -> TrainOutput:
        """``fit`` in the group that evaluates, until the other one has trained."""
        assert self._group is not None
        if self._debug_level >= 5 or validation_data(module, val_dataset)[0] is None:
            return TrainOutput(0, 0.0, {})
        queue = EvaluationQueue(queue_folder(self.model_path))
        with as_loud_as_asked(self._settings.verbose):
            notes = wait_for_training(queue, self._group)
            self._seed = notes.seed
            native = self._prepared(module, val_dataset)
            # The training hands the same files over.
            self._artifacts.hand_over = lambda path: None  # type: ignore[method-assign]
            with prepared_teacher(module.teacher, native.args):
                return follow(Measuring(native, self._keeper, self._kept), queue, self._group, notes)

    def register_model_saving(
        self, model_saving: str, saving_below: float | None = None, saving_above: float | None = None
    ) -> None:
        """Keep the best model by one more way: "best_accuracy", or "accuracy@first/valid_loss@second", ...

        ``@`` names validation sets, and of several with ``/`` between them all must improve. Each has a folder of its
        own in ``model_path``. They stand in place of the usual ``model_saving``; one that is given beside is kept too.
        """
        saving = registered_saving(model_saving, saving_below, saving_above)
        self._registered = [*(one for one in self._registered if one.mode != saving.mode), saving]

    def save_model(self, folder: str | Path) -> None:
        """Write the model of ``fit`` as it is now, as safetensors."""
        if self._native is None:
            raise ValueError("save_model writes the model of fit(): call that first.")
        self._native.save_model(str(folder))

    def log_artifact(self, path: str | Path) -> None:
        """Hand a file or a folder to the tracker; before ``fit``, as soon as it runs."""
        self._artifacts.add(Path(path), self._native)

    def log_artifacts(self, path: str | Path) -> None:
        """Hand everything in a folder to the tracker."""
        if not Path(path).is_dir():
            raise ValueError(f"log_artifacts: there is no folder {path}.")
        for each in sorted(Path(path).iterdir()):
            self.log_artifact(each)

    # ---- evaluation

    def evaluate(
        self,
        module: AcceleratorModule | str | tuple[str, Any],
        dataset: Any,
        eval_logic_fn_name: str = "test_step",
        results_output: str | Path | None = "results.json",
        verbose: bool = True,
        module_hooks: bool = True,
        **kwargs: Any,
    ) -> dict[str, float]:
        """Loss and metrics of ``module`` over ``dataset``, by its ``test_step`` or else ``validation_step``.

        They are also written to ``results_output``, and printed. ``metrics``, ``batch_size``, ``num_workers``,
        ``pin_memory``, ``collate_fn`` and ``compile`` may differ from the training's.
        """
        options = EvaluationOptions.taken_from(kwargs)
        module = as_module(module, kwargs)
        # A copy: where the training stands is not touched.
        other = copy.copy(self)
        other._settings, other.hps = options.settings(self._settings), copy.copy(self.hps)
        other.hps.batch_sizes = options.batch_sizes(self.hps.batch_sizes)
        if options.metrics is not None:
            other._metrics = metrics_by_set(options.metrics)
            check_names(other._metrics, None, self._settings.names_taken)
        with as_loud_as_asked(other._settings.verbose):
            data, _ = validation_data(module, dataset)
            if data is None:
                raise ValueError("evaluate needs data: pass a data set.")
            native = other._prepared(module, None, step=eval_logic_fn_name)
            own = native.in_own_batches(data, self._settings.later.batch_samplers[1])
            told = native.told_of_evaluation(module_hooks)
            with prepared_teacher(module.teacher, native.args), told, same_modes_after(native.adapter):
                found = native.test(own)
        words = InTheirWords(self._settings, list(data) if isinstance(data, Mapping) else None)
        results = words.results({f"eval_{name.removeprefix('test_')}": value for name, value in found.items()})
        if "test_loss" in found:
            # Later versions give it under this name.
            results["loss"] = found["test_loss"]
        report(results, results_output, prints=verbose and self._settings.verbose)
        return results

    def evaluate_on_test(self, module: Any, dataset: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
        """:meth:`evaluate` by ``test_step``."""
        return self.evaluate(module, dataset, "test_step", *args, **kwargs)

    def evaluate_on_validation(self, module: Any, dataset: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
        """:meth:`evaluate` by ``validation_step``."""
        return self.evaluate(module, dataset, "validation_step", *args, **kwargs)

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
        if self._native is None or not (self._native.is_in_train or self._native.captured is not None):
            raise ValueError("Trainer.log() works while fit() runs.")
        self._native.log({name: float(value) for name, value in values.items()})

    @property
    def accelerator(self) -> Any:
        """This process among the others, in Accelerate's names; during and after a training with all it offers."""
        return ThisProcess() if self._native is None else self._native.accelerator

    def _patience_left(self) -> dict[str, int]:
        return {kept.mode: kept.patience_left for kept in self._kept}

    # ---- building

    def _prepared(
        self, module: AcceleratorModule, val_dataset: object, checkpoint: str | None = None, step: str | None = None
    ) -> Loop:
        """The native Trainer for ``module``, ready to train or, by the step of that name, to evaluate."""
        validation, keys = validation_data(module, val_dataset)
        sets = list(validation) if isinstance(validation, dict) else None
        self._keeper = keeper = StatusKeeper()
        keeper.sets, self.module = sets, module
        validates = validation is not None
        if validates and not module.can_validate:
            raise ValueError(
                f"{type(module).__name__} has no validation_step: define it (or step), or fit without val_dataset."
            )
        args = self._arguments(validates, checkpoint, module)
        self._kept = [] if step is not None else self._ways_of_saving(module, sets, validates)
        batches = ValidationBatches(self._settings) if not self._settings.report_loss_after_eval else None
        adapter = AcceleratedModule(
            module,
            self.hps,
            status=keeper.status,
            metrics=self._metrics,
            events=self._events,
            clip=args.max_grad_norm,
            validation_batch=None if batches is None else batches.add,
            test_step=step,
        )
        callbacks: list[Any] = [
            keeper,
            *self._kept,
            EventsBridge(self._events),
            self._artifacts,
            self._monitor.native(),
            *([batches] if batches else []),
        ]
        native = Loop(
            adapter,
            args,
            choices=data_choices(self._settings, module),
            events=self._events,
            callbacks=[*callbacks, InTheirWords(self._settings, sets)],
            test_batch_size=self.hps.batch_sizes[2],
            keys=keys,
        )
        native.eval_dataset = native.in_own_batches(validation, self._settings.later.batch_samplers[1])
        self._artifacts.hand_over = native.log_artifact
        if batches is not None:
            batches.log = native.log
        if not self._settings.verbose:
            native.remove_callback(PrinterCallback)
        self._native = native
        run = RunOfModule(
            native,
            adapter,
            status=keeper.status,
            training_state=self.state,
            log_every=self._settings.log_every,
        )
        attach_run(module, run)
        self._events.introduce(module, self, self.state)
        return native

    def _ways_of_saving(self, module: AcceleratorModule, sets: list[str] | None, validates: bool) -> list[Kept]:
        keeper = self._keeper
        if validates:
            check_names(self._metrics, sets, self._settings.names_taken)
        return keepers(
            self._settings,
            self._registered,
            metrics=self._metrics,
            sets=sets,
            validates=validates,
            notes=lambda: keeper.with_judged(self._kept),
            model=lambda: module.model,
        )

    def _arguments(self, validates: bool, checkpoint: str | None, module: AcceleratorModule) -> TrainingArguments:
        seed = seed_of(checkpoint) if self._seed is None else self._seed
        settings = native_settings(self._settings, self.hps, validates=validates, seed=seed)
        checkpoint_only_where_it_acts(settings, module.model)
        return TrainingArguments(**settings, **self._tracking, **launched())
