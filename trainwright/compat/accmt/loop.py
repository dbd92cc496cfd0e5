"""The native Trainer as this door drives it: its data, its evaluations, its teacher."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

from torch import nn
from torch.utils.data import DataLoader

from trainwright.compat.accmt.adapter import AcceleratedModule
from trainwright.compat.accmt.callbacks import CallbackEvents
from trainwright.compat.accmt.data import DataChoices
from trainwright.compat.accmt.metrics import joined_values, means_of
from trainwright.compat.accmt.samplers import CustomBatchSampler
from trainwright.compat.accmt.status import ONLY_SET
from trainwright.config import TrainingArguments
from trainwright.core.results import EvalLoopOutput
from trainwright.data.asked_order import data_seed
from trainwright.data.curriculum import Curriculum
from trainwright.data.iterables import has_length
from trainwright.data.loader import eval_loader, is_iterable, workers_for
from trainwright.trainer import Trainer
from trainwright.training.modules import is_loader


class EvaluatesElsewhere(Protocol):
    """Whoever is asked in place of an evaluation within a training."""

    def evaluate(self) -> None: ...


class Loop(Trainer):
    """``trainwright.Trainer`` over an adapted module."""

    #: Who evaluates within a training, where it is not this Trainer.
    elsewhere: EvaluatesElsewhere | None = None
    #: Takes what is logged, where that is not yet for the log.
    captured: list[dict[str, float]] | None = None

    def __init__(
        self,
        adapter: AcceleratedModule,
        args: TrainingArguments,
        *,
        choices: DataChoices,
        events: CallbackEvents,
        callbacks: list[Any],
        test_batch_size: int,
        keys: dict[str, Any],
    ) -> None:
        self.adapter, self._choices, self._events = adapter, choices, events
        self._test_batch_size, self._keys = test_batch_size, keys
        super().__init__(adapter, args, data_collator=choices.train_collate, callbacks=callbacks)

    # ---- data

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if dataset is not None and hasattr(dataset, "__len__"):
            chosen = self._choices.train_order(len(dataset), data_seed(self.args))
            if chosen is not None:
                return chosen
        return super()._get_train_sampler(train_dataset)

    def get_eval_dataloader(self, eval_dataset: object = None) -> Any:
        named = self.eval_dataset if eval_dataset is None else eval_dataset
        return self._loader_over(self.eval_dataset[named] if isinstance(named, str) else named, "evaluation")

    def get_test_dataloader(self, test_dataset: object) -> Any:
        return self._loader_over(test_dataset, "test", self._test_batch_size)

    def _loader_over(self, dataset: Any, description: str, batch_size: int | None = None) -> Any:
        if is_loader(dataset, description):
            return dataset
        order = None if is_iterable(dataset) else self._choices.val_order(len(dataset), data_seed(self.args))
        collate = self._choices.val_collate
        return eval_loader(dataset, sampler=order, collate=collate, args=self.args, batch_size=batch_size)

    def in_own_batches(self, data: Any, batch_sampler: Any, *, trains: bool = False) -> Any:
        """``data`` as a loader over the batches that a user's batch sampler makes, if there is one."""
        if batch_sampler is None or data is None or is_loader(data, "batch_sampler"):
            return data
        if isinstance(data, dict):
            return {name: self.in_own_batches(each, batch_sampler, trains=trains) for name, each in data.items()}
        if isinstance(data, Curriculum):
            raise ValueError("batch_sampler chooses among one data set, and a curriculum has several: leave it out.")
        if isinstance(batch_sampler, CustomBatchSampler) and self.args.world_size > 1:
            raise ValueError(
                "batch_sampler: a CustomBatchSampler divides the data between processes itself, and here the Trainer "
                "does: derive it from torch.utils.data.Sampler, and let it give the batches of all processes."
            )
        collate = self._choices.train_collate if trains else self._choices.val_collate
        workers = workers_for(data, self.args)
        return DataLoader(data, batch_sampler=batch_sampler, collate_fn=collate, num_workers=workers)

    # ---- evaluation

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        if self.is_in_train and eval_dataset is None and self.elsewhere is not None and self.captured is None:
            self.elsewhere.evaluate()
            return {}
        is_named = isinstance(eval_dataset, str)
        self.adapter.validation_set = self._keys.get(eval_dataset, eval_dataset) if is_named else ONLY_SET
        # Once, also where there are several sets: each of these comes by here again, by its name.
        with self.told_of_evaluation() if self.is_in_train and eval_dataset is None else nullcontext():
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    def evaluate_now(self) -> dict[str, float]:
        """An evaluation of the training, whoever trains."""
        with nullcontext() if self.is_in_train else self.told_of_evaluation():
            return self.evaluate()

    @contextmanager
    def told_of_evaluation(self, module_too: bool = True) -> Iterator[None]:
        """Whoever wants to know that an evaluation begins and ends is told."""
        self._events.tell("on_evaluation_start")
        if module_too:
            self.adapter.users.before_eval()
        yield
        if module_too:
            self.adapter.users.after_eval()
        self._events.tell("on_evaluation_end")

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        adapter = self.adapter
        metrics = adapter.metrics_of(adapter.validation_set)
        for metric in metrics:
            # What an interrupted evaluation left.
            metric.clear()
        adapter.unasked.clear()
        loader: Any = args[0] if args else kwargs.get("dataloader")
        adapter.validation_batches = len(loader) if has_length(loader) else None
        adapter.validation_batch_number = 0
        teacher = adapter.users.teacher
        if isinstance(teacher, nn.Module):
            teacher.to(self.args.device)
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        gather = self.engine.backend.gather
        found = means_of(adapter.unasked, gather)
        for metric in metrics:
            joined_values(metric, metric.result(gather), found)
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in found.items()})
        return output

    # ---- a run

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if self.captured is not None:
            self.captured.append({name: float(value) for name, value in logs.items()})
            return
        # A copy: its names are changed on the way to the trackers, and those of `logs` decide which model is best.
        shown = dict(logs)
        super().log(shown, start_time)
        logs.update({name: value for name, value in shown.items() if name == "epoch"})


@contextmanager
def same_modes_after(module: nn.Module) -> Iterator[None]:
    """Whatever an evaluation does: afterwards each part trains that did before. It may be amid a training."""
    before = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, was_training in before:
            part.training = was_training


@contextmanager
def prepared_teacher(teacher: nn.Module | None, args: TrainingArguments) -> Iterator[None]:
    """A module's teacher for the time of a training: on the device, at rest, and compiled where the model is."""
    if teacher is None:
        yield
        return
    before, was_training = teacher._compiled_call_impl, teacher.training
    teacher.to(args.device).requires_grad_(False).eval()
    if args.torch_compile:
        teacher.compile(backend=args.torch_compile_backend or "inductor", mode=args.torch_compile_mode)
    try:
        yield
    finally:
        teacher._compiled_call_impl = before
        teacher.train(was_training)
