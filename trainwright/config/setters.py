"""``set_*`` helpers: related arguments set together, each returning the arguments for chaining."""

from typing import Self

from trainwright.config.coerce import registered_name
from trainwright.config.derive import resolve_trackers
from trainwright.config.enums import HubStrategy, IntervalStrategy, OptimizerNames, SaveStrategy, SchedulerType
from trainwright.config.fields import AllFields, is_ours
from trainwright.config.intervals import EVALUATE, LOG, SAVE, Topic


def _need_steps(strategy: IntervalStrategy | SaveStrategy, steps: float) -> None:
    if strategy == "steps" and steps <= 0:
        raise ValueError(f'strategy="steps" needs a positive `steps`, not {steps}; or use strategy="no".')


class Setters(AllFields):
    """transformers' nine helpers, with its names and defaults."""

    def _give_up(self, topic: Topic) -> None:
        """A strategy that is set now counts, not the cadence that was given before."""
        if is_ours(self, topic.every):
            setattr(self, topic.every, None)

    def set_training(
        self,
        learning_rate: float = 5e-5,
        batch_size: int = 8,
        weight_decay: float = 0,
        num_epochs: float = 3,
        max_steps: int = -1,
        gradient_accumulation_steps: int = 1,
        seed: int = 42,
        gradient_checkpointing: bool = False,
    ) -> Self:
        """The basics of training; also sets ``do_train``."""
        self.do_train = True
        self.learning_rate = learning_rate
        self.per_device_train_batch_size = batch_size
        self.weight_decay = weight_decay
        self.num_train_epochs = num_epochs
        self.max_steps = max_steps
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.seed = seed
        self.gradient_checkpointing = gradient_checkpointing
        return self

    def set_evaluate(
        self,
        strategy: str | IntervalStrategy = "no",
        steps: int = 500,
        batch_size: int = 8,
        accumulation_steps: int | None = None,
        delay: float | None = None,
        loss_only: bool = False,
    ) -> Self:
        """When and how to evaluate; ``do_eval`` follows the strategy."""
        self._give_up(EVALUATE)
        self.eval_strategy = IntervalStrategy(strategy)
        _need_steps(self.eval_strategy, steps)
        self.do_eval = self.eval_strategy != IntervalStrategy.NO
        self.eval_steps = steps
        self.per_device_eval_batch_size = batch_size
        self.eval_accumulation_steps = accumulation_steps
        self.eval_delay = 0 if delay is None else delay
        self.prediction_loss_only = loss_only
        return self

    def set_testing(self, batch_size: int = 8, loss_only: bool = False) -> Self:
        """How to predict; also sets ``do_predict``."""
        self.do_predict = True
        self.per_device_eval_batch_size = batch_size
        self.prediction_loss_only = loss_only
        return self

    def set_save(
        self,
        strategy: str | SaveStrategy = "steps",
        steps: int = 500,
        total_limit: int | None = None,
        on_each_node: bool = False,
    ) -> Self:
        """When to save and how many checkpoints to keep."""
        self._give_up(SAVE)
        self.save_strategy = SaveStrategy(strategy)
        _need_steps(self.save_strategy, steps)
        self.save_steps = steps
        self.save_total_limit = total_limit
        self.save_on_each_node = on_each_node
        return self

    def set_logging(
        self,
        strategy: str | IntervalStrategy = "steps",
        steps: int = 500,
        report_to: str | list[str] = "none",
        level: str = "passive",
        first_step: bool = False,
        nan_inf_filter: bool = False,
        on_each_node: bool = False,
        replica_level: str = "passive",
    ) -> Self:
        """What to log, how often and to whom."""
        self._give_up(LOG)
        self.logging_strategy = IntervalStrategy(strategy)
        _need_steps(self.logging_strategy, steps)
        self.logging_steps = steps
        self.report_to = resolve_trackers(report_to)
        self.log_level = level
        self.logging_first_step = first_step
        self.logging_nan_inf_filter = nan_inf_filter
        self.log_on_each_node = on_each_node
        self.log_level_replica = replica_level
        return self

    def set_push_to_hub(
        self,
        model_id: str,
        strategy: str | HubStrategy = "every_save",
        token: str | None = None,
        private_repo: bool | None = None,
        always_push: bool = False,
        revision: str | None = None,
    ) -> Self:
        """Where and when to push; also sets ``push_to_hub``."""
        self.push_to_hub = True
        self.hub_model_id = model_id
        self.hub_strategy = HubStrategy(strategy)
        self.hub_token = token
        self.hub_private_repo = private_repo
        self.hub_always_push = always_push
        self.hub_revision = revision
        return self

    def set_optimizer(
        self,
        name: str | OptimizerNames = "adamw_torch",
        learning_rate: float = 5e-5,
        weight_decay: float = 0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        args: str | None = None,
    ) -> Self:
        """The optimizer and its numbers."""
        self.optim = registered_name("optim", name)
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.adam_beta1 = beta1
        self.adam_beta2 = beta2
        self.adam_epsilon = epsilon
        self.optim_args = args
        return self

    def set_lr_scheduler(
        self,
        name: str | SchedulerType = "linear",
        num_epochs: float = 3.0,
        max_steps: int = -1,
        warmup_steps: float = 0,
    ) -> Self:
        """The schedule and how long it lasts."""
        self.lr_scheduler_type = registered_name("lr_scheduler_type", name)
        self.num_train_epochs = num_epochs
        self.max_steps = max_steps
        self.warmup_steps = warmup_steps
        return self

    def set_dataloader(
        self,
        train_batch_size: int = 8,
        eval_batch_size: int = 8,
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool = True,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        multiprocessing_context: str | None = None,
        in_order: bool = True,
        auto_find_batch_size: bool = False,
        ignore_data_skip: bool = False,
        sampler_seed: int | None = None,
    ) -> Self:
        """How data is read."""
        self.per_device_train_batch_size = train_batch_size
        self.per_device_eval_batch_size = eval_batch_size
        self.dataloader_drop_last = drop_last
        self.dataloader_num_workers = num_workers
        self.dataloader_pin_memory = pin_memory
        self.dataloader_persistent_workers = persistent_workers
        self.dataloader_prefetch_factor = prefetch_factor
        self.dataloader_multiprocessing_context = multiprocessing_context
        self.dataloader_in_order = in_order
        self.auto_find_batch_size = auto_find_batch_size
        self.ignore_data_skip = ignore_data_skip
        self.data_seed = sampler_seed
        return self
