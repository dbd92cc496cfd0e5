"""Methods that subclasses override, with Hugging Face's names: each is the plain function that does its work."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from trainwright.config.arguments import TrainingArguments
from trainwright.core.results import EvalLoopOutput
from trainwright.data.loader import num_examples
from trainwright.engines.torch.optim import decay_parameter_names, optimizer_class_and_kwargs
from trainwright.loop.fit import note_best
from trainwright.trainer.accelerator_view import AcceleratorView
from trainwright.trainer.face import Face
from trainwright.trainer.hub import push_checkpoint
from trainwright.training import actions, counting, data, evaluation, optimizers, restore, save, save_model, start, step
from trainwright.training.construction import refuse_contradictions
from trainwright.training.logs import write_log
from trainwright.training.plan import plan_training, total_train_batch_size
from trainwright.training.recipe import recipe_text
from trainwright.training.run import TrainingRun


class Methods(Face):
    """A batch's way, data, optimizer, evaluation, saving: overridable, one by one."""

    accelerator: AcceleratorView
    #: For subclasses whose ``compute_loss`` returns no plain mean: True where it has divided by the whole step's
    #: ``num_items_in_batch`` (which it then gets) or number of batches; False for the mean of the batches' losses.
    loss_is_scaled_for_ga: bool | None = None
    #: For subclasses whose ``compute_loss`` divides by ``num_items_in_batch`` and multiplies by the processes' number,
    #: as those written for transformers do: the count is then as large as if all of them had this micro-batch.
    counts_over_processes = False

    # ---- one micro-batch

    def count_targets(self, inputs: Any) -> Any:
        """What the mean loss of a batch is taken over; override it where the model counts differently.

        By default integer labels that are not -100 (without each row's first for models that shift), else samples.
        """
        return self._setup.calling.count_targets(inputs)

    def split_batch(self, inputs: Any, parts: int) -> list[Any]:
        """``inputs`` in ``parts`` pieces, for ``micro_batch``; override it where a batch is not a row per sample."""
        return step.split_batch(self._setup, inputs, parts)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """The next step's micro-batches and the number of targets in them."""
        return step.get_batch_samples(self._setup, epoch_iterator, num_batches, device)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of one micro-batch; returns its share of the step's loss, detached."""
        return step.training_step(self._setup, model, inputs, num_items_in_batch)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Mean loss over the targets of this micro-batch, or ``(loss, outputs)``.

        ``num_items_in_batch`` is this micro-batch's own count: dividing a sum by it and ignoring it both give the mean.
        The Trainer weights micro-batches by their share of the step's targets, unless ``loss_is_scaled_for_ga`` is set.
        """
        return step.compute_loss(self._setup, model, inputs, return_outputs, num_items_in_batch)

    def _prepare_inputs(self, inputs: Any) -> Any:
        """Batch on the device."""
        return step.prepare_inputs(self._setup, inputs)

    def _prepare_input(self, data: Any) -> Any:
        """A tensor, or what is nested in a batch, on the device."""
        return step.prepare_input(self._setup, data)

    def compute_loss_context_manager(self) -> Any:
        """Context of a forward pass: autocast where the run uses it."""
        if self._setup.calling.autocast_is_own:
            return self.autocast_smart_context_manager()
        return self._setup.engine.precision.autocast()

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> Any:
        return self._setup.engine.precision.autocast(bool(cache_enabled))

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """Clip the step's gradients as ``max_grad_norm`` says; returns the norm they had."""
        return self._setup.engine.clip_gradients()

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """The norm to log: that of clipping, or that of the gradients as they are."""
        return self._setup.engine.gradient_norm() if grad_norm is None else grad_norm

    # ---- data

    def get_train_dataloader(self) -> Any:
        """Loader over ``self.train_dataset`` in an order that is a function of (seed, epoch)."""
        return data.train_dataloader(self._setup)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Loader over an evaluation set: the one given, the one of that name, or ``self.eval_dataset``."""
        return data.eval_dataloader(self._setup, eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Loader over ``test_dataset``, in its own order."""
        return data.test_dataloader(self._setup, test_dataset)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """Order of the training samples; None for a dataset without a length."""
        return data.train_sampler(self._setup, train_dataset)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        """Order of the evaluation samples: as they stand, or longest first when training groups by length."""
        return data.eval_sampler(self._setup, eval_dataset)

    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Callable[..., Any] | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> Any:
        """Loader over ``dataset`` in the order of ``sampler_fn(dataset)``, for training or evaluation."""
        return data.dataloader(self._setup, dataset, description, batch_size, sampler_fn, is_training=is_training)

    @property
    def _train_batch_size(self) -> int:
        """Samples per training batch in this process."""
        return self._setup.args.train_batch_size

    @_train_batch_size.setter
    def _train_batch_size(self, size: int) -> None:
        if size != self._train_batch_size:
            raise ValueError(
                f"_train_batch_size is what the arguments say: set per_device_train_batch_size={size} there."
            )

    def _set_signature_columns_if_needed(self) -> None:
        """Put the columns that are not dropped into ``self._signature_columns``, unless they are there."""
        if self._signature_columns is None:
            self._signature_columns = data.signature_columns(self._setup)

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        """``dataset`` without columns that the model's ``forward`` does not take, if ``remove_unused_columns``."""
        return data.drop_unused_columns(self._setup, dataset, description)

    def _get_collator_with_removed_columns(
        self, data_collator: Callable[[list[Any]], Any], description: str | None = None
    ) -> Callable[[list[Any]], Any]:
        """``data_collator`` for samples of which such columns are dropped."""
        return data.dropping_collator(self._setup, data_collator, description)

    def num_examples(self, dataloader: Any) -> int:
        """Samples that ``dataloader`` goes through."""
        return num_examples(dataloader)

    # ---- what updates the weights

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Set ``self.optimizer`` and ``self.lr_scheduler``."""
        optimizers.create_optimizer_and_scheduler(self._setup, num_training_steps)

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        """Build ``self.optimizer`` unless the user gave one; returns it."""
        return optimizers.create_optimizer(self._setup, model)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Build ``self.lr_scheduler`` unless the user gave one; returns it."""
        return optimizers.create_scheduler(self._setup, num_training_steps, optimizer)

    @staticmethod
    def get_optimizer_cls_and_kwargs(
        args: TrainingArguments, model: nn.Module | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The optimizer class that ``args.optim`` names, and its arguments."""
        return optimizer_class_and_kwargs(args, model)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Parameters that weight decay applies to: all but biases and norms."""
        return decay_parameter_names(model)

    def get_num_trainable_parameters(self) -> int:
        """Number of parameters that are trained."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    def get_learning_rates(self) -> list[float]:
        """Learning rate of each parameter group."""
        return optimizers.get_learning_rates(self._setup)

    def get_optimizer_group(self, param: Any = None) -> Any:
        """The group that holds ``param``, or all groups' parameters."""
        return optimizers.get_optimizer_group(self._setup, param)

    def _get_learning_rate(self) -> float:
        return self.get_learning_rates()[0]

    # ---- evaluation

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Go through ``dataloader`` with :meth:`prediction_step` and compute the metrics."""
        return evaluation.evaluation_loop(
            self._setup, dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
        )

    def prediction_step(
        self,
        model: nn.Module,
        inputs: Any,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor | None, Any, Any]:
        """(loss, predictions, labels) of one batch; each may be None."""
        return evaluation.prediction_step(self._setup, model, inputs, prediction_loss_only, ignore_keys)

    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        """Evaluate within a training; a schedule that follows a metric hears of it, unless it is to be skipped."""
        return actions.evaluate_in_training(
            self._present_run(), ignore_keys_for_eval, tells_schedule=not skip_scheduler
        )

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Note in the state whether an evaluation is the best so far; True if it is."""
        return note_best(self._present_run(), metrics)

    def _nested_gather(self, tensors: Any, name: str | None = None) -> Any:
        """Tensors of all processes, one after another, as transformers 4 had it for evaluation loops of one's own."""
        return self.accelerator.gather(tensors)

    # ---- saving and resuming

    def get_state(self) -> dict[str, Any]:
        """What a subclass wants to find again after a resume: tensors and JSON; saved with every checkpoint."""
        return {}

    def update_state(self, state: dict[str, Any]) -> None:
        """Take up what :meth:`get_state` returned when the checkpoint was saved."""

    def _save(self, output_dir: str | Path | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        save_model.write_model(self._setup, output_dir, state_dict)

    def save_processor(self, folder: Path) -> None:
        """Write what belongs to a saved model besides its weights: the files of the tokenizer or processor."""
        save_model.save_processor(self._setup, folder)

    def recipe_text(self) -> str | None:
        """The recipe as it is saved beside the weights; None without one."""
        return recipe_text(self._setup)

    def _get_output_dir(self, trial: Any = None) -> str:
        """The folder that holds ``checkpoint-<step>``; in a search, that of the present trial."""
        return str(save_model.run_folder(self._setup))

    def _save_checkpoint(self, model: nn.Module, trial: Any = None, metrics: dict[str, float] | None = None) -> None:
        """Write ``checkpoint-<step>`` whole, then let older ones go; uploaded as ``hub_strategy`` says.

        ``metrics``, which transformers passed until 4.46, are in the state already.
        """
        run = self._present_run()
        save.save_checkpoint(run)
        push_checkpoint(run)

    def _load_from_checkpoint(self, resume_from_checkpoint: str | Path, model: nn.Module | None = None) -> None:
        """Weights of a checkpoint into the model."""
        restore.load_from_checkpoint(self._setup, resume_from_checkpoint, model)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Nothing: both are saved with the checkpoint. Overrides write files of their own into its folder."""

    def _save_scaler(self, output_dir: str) -> None:
        """Nothing: the scaler is saved with the checkpoint."""

    def _save_rng_state(self, output_dir: str) -> None:
        """Nothing: random states are saved with the checkpoint."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Optimizer and schedule of the checkpoint that a training is resumed from."""
        restore.load_optimizer_and_scheduler(self._run, checkpoint)

    def _load_scaler(self, checkpoint: str | None) -> None:
        restore.load_scaler(self._run, checkpoint)

    def _load_callback_state(self) -> None:
        """Give callbacks back what the checkpoint's state, which is ``self.state`` now, holds of them."""
        restore.restore_callbacks(self._setup, self.state.stateful_callbacks)

    def _load_best_model(self) -> None:
        restore.load_best_model(self._present_run())

    def _present_run(self) -> TrainingRun:
        if self._run is None:
            raise ValueError("There is no training yet: call train() first.")
        return self._run

    # ---- counting and logging

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Append ``logs`` to ``state.log_history`` and tell the callbacks."""
        write_log(self._setup, logs, start_time)

    def floating_point_ops(self, inputs: Any) -> int:
        """Estimated floating point operations of forward and backward for ``inputs``."""
        return counting.floating_point_ops(self._setup, inputs)

    def store_flos(self) -> None:
        """Add the operations counted since the last call to the state."""
        counting.store_flos(self._setup)

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Add the tokens of a micro-batch to the state, where ``include_num_input_tokens_seen`` asks for it."""
        counting.track_input_tokens(self._setup, inputs)

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        """Samples per optimizer step over all devices."""
        return total_train_batch_size(args)

    def set_initial_training_values(
        self, args: TrainingArguments, dataloader: Any
    ) -> tuple[int, int, int, int, int, int | None, int]:
        """HF's tuple: epochs, steps per epoch, examples, training samples, batch size, batches per epoch, max steps."""
        batch = self.get_total_train_batch_size(args)
        plan = plan_training(self.args, dataloader, self.num_examples, batch)
        sizes = (plan.epochs, plan.steps_per_epoch, plan.examples, plan.samples)
        return (*sizes, batch, plan.batches_per_epoch, plan.max_steps)

    def get_sp_size(self) -> int:
        return 1

    def get_cp_size(self) -> int:
        return 1

    def get_tp_size(self) -> int:
        return 1

    def end(self) -> None:
        """Finish trackers; nothing else is open after ``train``."""

    # ---- the engine, and the model

    def _validate_args(self) -> None:
        """Refuse what the constructor was given and cannot go together."""
        refuse_contradictions(self._setup)

    def _move_model_to_device(self, model: nn.Module, device: Any) -> None:
        model.to(device)

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        """The model as it is called in training, or in an evaluation; the strategy spreads it afterwards."""
        return model

    def create_accelerator_and_postprocess(self) -> None:
        """Build the engine, and ``self.accelerator``, a view of it."""
        start.build_engine(self._setup)
        self.is_fsdp_enabled = self.strategy.layout.name == "fsdp"
        self.is_deepspeed_enabled = self.strategy.layout.name == "deepspeed"
        self.accelerator = AcceleratorView(self._setup)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._own(self._setup)
        self._setup.hooks = weakref.ref(self)
        self.create_accelerator_and_postprocess()

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """A new model from ``model_init``, which may take the trial."""
        return start.call_model_init(self._setup, trial)
