"""The Trainer: Hugging Face's shape, our loop.

The class wires and delegates. What it is made of stands beside it, one topic a file: ``foundation`` (attributes,
events, log), ``reporting``, ``data_methods``, ``optimization``, ``steps`` (one micro-batch), ``evaluation``,
``saving``, ``hub``, ``artifacts``, ``bookkeeping``. The loop is in ``trainwright/loop/fit.py``.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from trainwright.config import TrainingArguments, adopt_arguments, check_device
from trainwright.config.fields import ours
from trainwright.config.run_directory import run_directory
from trainwright.core.backend import Backend
from trainwright.core.callback import CallbackHandler
from trainwright.core.checkpointer import Checkpointer
from trainwright.core.module import StepPlan
from trainwright.core.results import BestRun, TrainOutput
from trainwright.core.run import Phase, Run
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.data.loader import close_loader, data_seed
from trainwright.data.order import mixed_seed
from trainwright.data.rebuild import resumable_loader, shared_training
from trainwright.data.worker_deaths import DeferredDeaths
from trainwright.engines.torch.engine import TorchEngine
from trainwright.engines.torch.joint import EpochScheduleCallback, JointSchedule
from trainwright.engines.torch.memory import MemoryReport
from trainwright.engines.torch.module_engine import ManualEngine
from trainwright.engines.torch.precision import Precision, full_eval_dtype
from trainwright.engines.torch.randomness import enable_full_determinism, set_seed
from trainwright.engines.torch.targets import base_model
from trainwright.trainer.accelerator_view import AcceleratorView
from trainwright.trainer.construction import (
    choose_backend,
    choose_collator,
    choose_processor,
    default_callbacks,
    one_teacher,
    refuse_contradictions,
    refuse_missing_data,
    resolve_model,
    warn_of_unused_overrides,
    with_backend,
)
from trainwright.trainer.engine_choice import graph_engine, in_torch_form, refuse_what_the_engine_lacks
from trainwright.trainer.foresight import refuse_unknown_best_metric
from trainwright.trainer.handing_over import handing_over
from trainwright.trainer.notes import set_up_notes
from trainwright.trainer.own_state import own_states
from trainwright.trainer.planning import TrainingPlan, plan_training
from trainwright.trainer.preparation import prepared_model
from trainwright.trainer.recipe_methods import RecipeMethods
from trainwright.trainer.search import default_objective, default_space, search_hyperparameters
from trainwright.trainer.spreading import (
    adopt_sharded_parameters,
    choose_strategy,
    refuse_for_strategy,
    spreads_by_itself,
)
from trainwright.trainer.start_up import leaves_at_once

logger = logging.getLogger("trainwright")


class Trainer(RecipeMethods):
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

    @leaves_at_once("the Trainer was built")
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
        backend: Backend | str | None = None,
        checkpointer: Checkpointer | None = None,
        recipe: Any = None,
        recipe_args: dict[str, Any] | str | None = None,
        metadata_args: list[str] | None = None,
        teacher: nn.Module | str | Path | None = None,
        distill_teacher: nn.Module | str | Path | None = None,
    ) -> None:
        self.args = with_backend(adopt_arguments(args), backend)
        self._backend = choose_backend(self.args, backend)
        self._seed_everything()
        check_device(self.args)
        set_up_notes(self.args)
        self.args = args = self._take_recipe(recipe, recipe_args, metadata_args, one_teacher(teacher, distill_teacher))
        self.model_init = model_init
        self.processing_class = choose_processor(processing_class, tokenizer)
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.compute_loss_func, self.compute_metrics = compute_loss_func, compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizer, self.lr_scheduler = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self._own_optimizer, self._own_scheduler = self.optimizer is None, self.lr_scheduler is None
        refuse_contradictions(self)
        self._handing_over = handing_over(args, checkpointer)
        warn_of_unused_overrides(self)
        self._memory = MemoryReport(not args.skip_memory_metrics)
        self._memory.start("init")
        self.place_model_on_device = args.place_model_on_device is not False and full_eval_dtype(args) is None
        self._adopt_first_model(resolve_model(model, self))
        self.data_collator = data_collator or choose_collator(self.processing_class)
        self.create_accelerator_and_postprocess()
        self.callback_handler = self._handler_of(callbacks or [])
        self.control, self.state, self.is_in_train = TrainerControl(), TrainerState(), False
        if args.push_to_hub:
            self.init_hf_repo()
        if args.should_save:
            run_directory(args).mkdir(parents=True, exist_ok=True)
        self._fire("on_init_end")
        self._memory.stop("init")

    def _handler_of(self, users: list[Any]) -> CallbackHandler:
        # Modifiers first: whoever looks at weights sees what they made of them.
        own = [*self.modifiers, *self._module_callbacks(), *users, *own_states(self)]
        return CallbackHandler(
            default_callbacks(self.args, own),
            model=self.model,
            processing_class=self.processing_class,
            tokenizer=self.processing_class,  # its name in transformers 4
            optimizer=self.optimizer,
            lr_scheduler=self.lr_scheduler,
        )

    #: Scripts and subclasses ask.
    is_model_parallel = is_deepspeed_enabled = is_fsdp_enabled = False
    hp_search_backend: str | None = None

    def _adopt_first_model(self, model: nn.Module | None) -> None:
        """None where ``fit`` will be given one; a Module may still be given data, or bring its own."""
        if model is not None:
            self._adopt_model(model)
            if self._module is None:
                refuse_missing_data(self)

    def _adopt_model(self, model: nn.Module) -> None:
        """Take ``model`` and learn from its signature how to call it."""
        if self.place_model_on_device and not hasattr(model, "hf_device_map") and not spreads_by_itself(self.args):
            model = model.to(self.args.device)
        self.model = self.model_wrapped = model
        self._take_module(model)
        config = getattr(base_model(model), "config", None)
        if config is not None and hasattr(config, "use_cache"):
            config.use_cache = self.args.use_cache
        self._learn_signatures(model)

    def create_accelerator_and_postprocess(self) -> None:
        """Build the engine, and ``self.accelerator``, a view of it."""
        by_hand = self._module is not None and not self._module.automatic_optimization
        self.strategy = choose_strategy(self, by_hand=by_hand)
        self.is_fsdp_enabled = self.strategy.name == "fsdp"
        self.is_deepspeed_enabled = self.strategy.name == "deepspeed"
        self.engine = self._make_engine(
            device=self.args.device,
            precision=Precision(self.args, self.args.device, casts=not self.strategy.casts_by_itself),
            max_grad_norm=self.args.max_grad_norm or 0.0,
            skip_nonfinite_logs=self.args.logging_nan_inf_filter,
            training_step=self._train_by_hand if by_hand else self._train_on,
            count_targets=self.count_targets,
            backend=self._backend,
            set_grads_to_none=ours(self.args, "set_grads_to_none"),
            strategy=self.strategy,
        )
        refuse_what_the_engine_lacks(self)
        self.accelerator = AcceleratorView(self.engine, self.args.gradient_accumulation_steps)

    def _make_engine(self, **options: Any) -> TorchEngine:
        if ours(self.args, "engine") == "torch":
            return self._engine_class()(**options)
        return graph_engine(self, **options)

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """A new model from ``model_init``, which may take the trial."""
        assert self.model_init is not None
        takes_trial = len(inspect.signature(self.model_init).parameters) > 0
        model = self.model_init(trial) if takes_trial else self.model_init()
        if model is None:
            raise ValueError("model_init returned None; it must return the model.")
        return in_torch_form(model, self)

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

    def fit(
        self,
        module: nn.Module | None = None,
        train: Any = None,
        val: Any = None,
        *,
        resume_from_checkpoint: str | Path | bool | None = None,
    ) -> TrainOutput:
        """:meth:`train`, with the model and the data given here: datasets or loaders, ``val`` also a dict of them.

        What is left out stays what the Trainer got, or comes from the Module's ``train_dataloader`` and
        ``val_dataloader``.
        """
        if module is not None:
            if self.model_init is not None:
                raise ValueError("fit(model) and model_init= name two models: which one should be trained?")
            self._adopt_another_model(module)
        self._require_model()
        self.train_dataset = self.train_dataset if train is None else train
        self.eval_dataset = self.eval_dataset if val is None else val
        return self.train(resume_from_checkpoint=resume_from_checkpoint)

    def _adopt_another_model(self, model: nn.Module) -> None:
        model = in_torch_form(model, self)
        if not isinstance(model, nn.Module):
            raise ValueError(f"fit(model, train, val) takes a torch.nn.Module first, not a {type(model).__name__}.")
        if model is self.model:
            return
        self._adopt_model(model)
        self.create_accelerator_and_postprocess()
        self.callback_handler.references["model"] = self.model
        if callable(heard := getattr(self._module, "on_init_end", None)):
            heard(self.args, self.state, self.control, **self.callback_handler.references)

    @leaves_at_once("the training was prepared")
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
        self._require_model()
        self._memory.start("train")
        self._seed_everything()
        if self.model_init is not None:
            self._adopt_model(self.call_model_init(trial))
            self.optimizer = self.lr_scheduler = None
        self._attach_module()
        if self.args.eval_strategy != "no":
            self._use_own_eval_data()
        refuse_missing_data(self)
        self._backend.start(self.args)
        self._open_saving()
        checkpoint = self._agreed_checkpoint(resume_from_checkpoint)
        loader = resumable_loader(self.get_train_dataloader(), data_seed(self.args))
        loader = shared_training(loader, self._place(), self.args.gradient_accumulation_steps)
        plan = plan_training(self, loader)
        refuse_unknown_best_metric(self)
        self._prepare_recipe()
        if checkpoint is not None:
            self._restore_structure(checkpoint)
        with DeferredDeaths() as self._deaths, prepared_model(self) as model:
            self._spread(model, checkpoint)
            epochs = min(plan.epochs, math.ceil(plan.max_steps / plan.steps_per_epoch))
            self._step_plan = StepPlan(plan.max_steps, plan.steps_per_epoch, epochs)
            self._create_training_tools(plan.max_steps)
            if checkpoint is not None and self.strategy.gathers_to_save:
                # Weights were cast on their way to where they are; here they go as they were saved.
                self._load_from_checkpoint(checkpoint)
            self.is_in_train = True
            try:
                self._train_to_the_end(loader, plan, checkpoint, ignore_keys_for_eval)
                self._finish_recipe()
                self._refuse_to_look_saved()
            except BaseException as error:
                self.callback_handler.training_failed(error)
                self._memory.stop("train")
                raise
            finally:
                self.is_in_train = False
                self.engine.show_weights()
                self._saver.wait()
                self._capture.forget()
                close_loader(loader)
                if self._handing_over is not None:
                    self._handing_over.close()
        return TrainOutput(self.state.global_step, self._summary["train_loss"], self._summary)

    def _spread(self, called: nn.Module, checkpoint: Path | None) -> None:
        """Weights of the checkpoint, if there is one, in the model; spread over the processes."""
        if checkpoint is not None and not self.strategy.is_sharded:
            self._load_from_checkpoint(checkpoint)
        before = dict(self.model.named_parameters())
        self.model_wrapped = self.strategy.spread(self.model, self._backend, called)
        if self.strategy.is_sharded:
            if self.optimizer is not None and not self._own_optimizer:
                adopt_sharded_parameters(self.optimizer, before, self.model)
            if checkpoint is not None:
                self._load_from_checkpoint(checkpoint)

    def _seed_everything(self) -> None:
        # Processes must not draw the same dropout masks for their different samples.
        rank = self.args.process_index // ours(self.args, "tensor_parallel_size")
        seed = self.args.seed if rank == 0 else mixed_seed(self.args.seed, rank)
        (enable_full_determinism if self.args.full_determinism else set_seed)(seed)

    def _create_training_tools(self, max_steps: int) -> None:
        """Optimizer and schedule; those made for an earlier call are made anew, those the user gave are kept."""
        if self._own_scheduler:
            self.lr_scheduler = None
        if self._own_optimizer:
            self.optimizer = None
        self.create_optimizer_and_scheduler(num_training_steps=max_steps)
        refuse_for_strategy(self)
        refuse_what_the_engine_lacks(self)
        self.model_wrapped = self.strategy.take_optimizer(self.model_wrapped, self.optimizer)
        self.engine.attach(self.model_wrapped, self.optimizer, self.lr_scheduler)
        self.callback_handler.call_before_looking(self.engine.show_weights if self.engine.hides_weights else None)
        self.callback_handler.pop_callback(EpochScheduleCallback)
        if isinstance(self.lr_scheduler, JointSchedule) and self.lr_scheduler.moves_by_epoch:
            self.add_callback(EpochScheduleCallback(self.lr_scheduler, lambda: self._feed.epoch_is_over))
        if self._may_save_unasked():
            self._check_own_states()

    def _build_run(self, loader: Any, plan: TrainingPlan, checkpoint: Path | None, ignore_keys: Any) -> Run:
        run = super()._build_run(loader, plan, checkpoint, ignore_keys)
        if isinstance(self.engine, ManualEngine):
            # Weights change in the middle of such a step: what is interrupted then cannot be saved.
            self.engine.update_begins = lambda: setattr(run, "phase", Phase.UPDATE)
        return run
