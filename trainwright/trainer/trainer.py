"""The Trainer: Hugging Face's shape, our loop.

The class wires and delegates. What it is made of stands beside it, one topic a file: ``foundation`` (attributes,
events, log), ``reporting``, ``data_methods``, ``optimization``, ``steps`` (one micro-batch), ``evaluation``,
``saving``, ``hub``, ``bookkeeping``. The loop is in ``trainwright/loop/fit.py``.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from trainwright.config import TrainingArguments, adopt_arguments, check_device
from trainwright.core.callback import CallbackHandler
from trainwright.core.results import BestRun, TrainOutput
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.data.loader import close_loader, data_seed
from trainwright.data.rebuild import resumable_loader
from trainwright.engines.torch.engine import TorchEngine
from trainwright.engines.torch.memory import MemoryReport
from trainwright.engines.torch.precision import Precision, full_eval_dtype
from trainwright.engines.torch.randomness import enable_full_determinism, set_seed
from trainwright.engines.torch.targets import base_model
from trainwright.trainer.accelerator_view import AcceleratorView
from trainwright.trainer.construction import (
    choose_collator,
    choose_processor,
    default_callbacks,
    refuse_contradictions,
    resolve_model,
    warn_of_unused_overrides,
)
from trainwright.trainer.foresight import refuse_unknown_best_metric
from trainwright.trainer.notes import set_up_notes
from trainwright.trainer.planning import plan_training
from trainwright.trainer.preparation import prepared_model
from trainwright.trainer.running import RunningMethods
from trainwright.trainer.search import default_objective, default_space, search_hyperparameters

logger = logging.getLogger("trainwright")


class Trainer(RunningMethods):
    """Train, evaluate and predict with a torch model.

    Takes what ``transformers.Trainer`` takes; subclasses may override the same methods.

    >>> import torch
    >>> data = [{"x": torch.randn(4), "labels": torch.tensor(i % 2)} for i in range(16)]
    >>> class Net(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = torch.nn.Linear(4, 2)
    ...     def forward(self, x):
    ...         return self.layer(x)
    >>> args = TrainingArguments("runs/example", max_steps=2, save_strategy="no", disable_tqdm=True)
    >>> output = Trainer(Net(), args, train_dataset=data).train()  # doctest: +ELLIPSIS
    {'train_runtime': ...}
    >>> output.global_step
    2
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_loss_func: Callable[..., Tensor] | None = None,
        compute_metrics: Any = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[..., Any] | None = None,
        *,
        tokenizer: Any = None,
    ) -> None:
        self.args = args = adopt_arguments(args)
        self._seed_everything()
        check_device(args)
        set_up_notes(args)
        self.model_init = model_init
        self.processing_class = choose_processor(processing_class, tokenizer)
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.compute_loss_func, self.compute_metrics = compute_loss_func, compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizer, self.lr_scheduler = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self._own_optimizer, self._own_scheduler = self.optimizer is None, self.lr_scheduler is None
        refuse_contradictions(self)
        warn_of_unused_overrides(self)
        self._memory = MemoryReport(not args.skip_memory_metrics)
        self._memory.start("init")
        self.place_model_on_device = args.place_model_on_device is not False and full_eval_dtype(args) is None
        self._adopt_model(resolve_model(model, self))
        self.data_collator = data_collator or choose_collator(self.processing_class)
        self.create_accelerator_and_postprocess()
        self.callback_handler = CallbackHandler(
            default_callbacks(args, list(callbacks or [])),
            model=self.model,
            processing_class=self.processing_class,
            tokenizer=self.processing_class,  # its name in transformers 4
            optimizer=self.optimizer,
            lr_scheduler=self.lr_scheduler,
        )
        self.control = TrainerControl()
        self.state = TrainerState()
        self.is_in_train = False
        self.hp_name: Callable[[Any], str] | None = None
        self.hp_search_backend: str | None = None
        self.hub_model_id = None
        if args.push_to_hub:
            self.init_hf_repo()
        if args.should_save:
            Path(str(args.output_dir)).mkdir(parents=True, exist_ok=True)
        self._fire("on_init_end")
        self._memory.stop("init")

    #: Not on one process; scripts and subclasses ask.
    is_model_parallel = is_deepspeed_enabled = is_fsdp_enabled = False

    def _adopt_model(self, model: nn.Module) -> None:
        """Take ``model`` and learn from its signature how to call it."""
        if self.place_model_on_device and not hasattr(model, "hf_device_map"):
            model = model.to(self.args.device)
        self.model = self.model_wrapped = model
        config = getattr(base_model(model), "config", None)
        if config is not None and hasattr(config, "use_cache"):
            config.use_cache = self.args.use_cache
        self._learn_signatures(model)

    def create_accelerator_and_postprocess(self) -> None:
        """Build the engine, and ``self.accelerator``, a view of it."""
        self.engine = TorchEngine(
            device=self.args.device,
            precision=Precision(self.args, self.args.device),
            max_grad_norm=self.args.max_grad_norm or 0.0,
            skip_nonfinite_logs=self.args.logging_nan_inf_filter,
            training_step=self._train_on,
            count_targets=self.count_targets,
        )
        self.accelerator = AcceleratorView(self.engine, self.args.gradient_accumulation_steps)

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """A new model from ``model_init``, which may take the trial."""
        assert self.model_init is not None
        takes_trial = len(inspect.signature(self.model_init).parameters) > 0
        model = self.model_init(trial) if takes_trial else self.model_init()
        if model is None:
            raise ValueError("model_init returned None; it must return the model.")
        return model

    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], Any] | None = None,
        n_trials: int = 20,
        direction: str | list[str] = "minimize",
        backend: str | None = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> BestRun:
        """Train ``n_trials`` times with arguments from ``hp_space(trial)`` and return the best.

        ``compute_objective`` turns evaluation metrics into the number to optimise: the loss by default, or the sum of
        the metrics where ``compute_metrics`` gives any. ``kwargs`` go to ``optuna.create_study``.
        """
        if self.model_init is None:
            raise ValueError("hyperparameter_search needs a new model for each trial: pass model_init= to the Trainer.")
        if backend not in (None, "optuna"):
            raise ValueError(f"backend={backend!r} is not supported; the choices are: 'optuna'.")
        self.hp_name, self.hp_search_backend = hp_name, "optuna"
        try:
            return search_hyperparameters(
                self, hp_space or default_space, compute_objective or default_objective, n_trials, direction, kwargs
            )
        finally:
            self.hp_search_backend = None

    # ---- training

    def train(
        self,
        resume_from_checkpoint: str | Path | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train; ``resume_from_checkpoint=True`` continues from the newest good checkpoint of this run.

        ``"auto"`` (or ``TrainingArguments(resume="auto")``) continues if there is one and starts otherwise. A signal
        or ``max_hours`` ends it with ``Preempted`` (Ctrl-C: ``KeyboardInterrupt``) once everything is saved.

        Returns ``TrainOutput(global_step, training_loss, metrics)``.
        """
        self._memory.start("train")
        self._seed_everything()
        if self.model_init is not None:
            self._adopt_model(self.call_model_init(trial))
            self.optimizer = self.lr_scheduler = None
        self._open_saving()
        checkpoint = self._resolve_checkpoint(resume_from_checkpoint)
        loader = resumable_loader(self.get_train_dataloader(), data_seed(self.args))
        plan = plan_training(self, loader)
        refuse_unknown_best_metric(self)
        if checkpoint is not None:
            self._load_from_checkpoint(checkpoint)
        with prepared_model(self) as model:
            self.model_wrapped = model
            self._create_training_tools(plan.max_steps)
            self.is_in_train = True
            try:
                self._train_to_the_end(loader, plan, checkpoint, ignore_keys_for_eval)
            except BaseException:
                self.callback_handler.training_failed()
                self._memory.stop("train")
                raise
            finally:
                self.is_in_train = False
                self._saver.wait()
                self._capture.forget()
                close_loader(loader)
        return TrainOutput(self.state.global_step, self._summary["train_loss"], self._summary)

    def _seed_everything(self) -> None:
        (enable_full_determinism if self.args.full_determinism else set_seed)(self.args.seed)

    def _create_training_tools(self, max_steps: int) -> None:
        """Optimizer and schedule; those made for an earlier call are made anew, those the user gave are kept."""
        if self._own_scheduler:
            self.lr_scheduler = None
        if self._own_optimizer:
            self.optimizer = None
        self.create_optimizer_and_scheduler(num_training_steps=max_steps)
        self.engine.attach(self.model_wrapped, self.optimizer, self.lr_scheduler)
