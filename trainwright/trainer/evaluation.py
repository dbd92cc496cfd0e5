"""Trainer methods that evaluate and predict; each may be overridden."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.config.fields import ours
from trainwright.core.microbatching import MicroBatching
from trainwright.core.results import EvalLoopOutput, PredictionOutput, speed_metrics
from trainwright.data.loader import close_loader, data_seed
from trainwright.data.rebuild import shared_evaluation, sharing_of
from trainwright.engines.torch.logged import Means
from trainwright.engines.torch.metrics import adds_up_over_processes, without_sync
from trainwright.engines.torch.module import loss_in
from trainwright.engines.torch.module_engine import ModuleEngine
from trainwright.engines.torch.precision import full_eval_dtype, half_evaluation
from trainwright.engines.torch.targets import base_model, find_labels
from trainwright.loop.evaluate import EvaluationPlan, evaluate, is_streaming_metric
from trainwright.trainer.start_up import leaves_at_once
from trainwright.trainer.steps import StepMethods

Transform = Callable[[Any], Any]


class EvaluationMethods(StepMethods):
    """evaluate, predict, and the steps they are made of."""

    @leaves_at_once("evaluating")
    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Metrics over ``eval_dataset``, or the Trainer's own; several sets give ``eval_<name>_...`` keys.

        The loss is the mean over all targets: it does not depend on the evaluation batch size.
        """
        self._require_model()
        self._use_own_eval_data()
        sets = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(sets, dict):
            return self._evaluate_each(eval_dataset, ignore_keys, metric_key_prefix)
        self._memory.start(metric_key_prefix)
        loader = self.get_eval_dataloader(eval_dataset)
        return self._measured(loader, "Evaluation", "on_evaluate", ignore_keys, metric_key_prefix)

    def _measured(
        self, loader: Any, description: str, event: str, ignore_keys: list[str] | None, prefix: str
    ) -> dict[str, float]:
        """Metrics over one loader, logged and told to callbacks."""
        start = time.time()
        output = self.evaluation_loop(
            loader,
            description=description,
            # Without a metric nobody looks at the predictions: do not keep them.
            prediction_loss_only=True if self.compute_metrics is None else None,
            ignore_keys=ignore_keys,
            metric_key_prefix=prefix,
        )
        metrics = output.metrics
        metrics.update(self._speed(prefix, start, output.num_samples))
        self.log(metrics)
        self._fire(event, metrics=metrics)
        metrics.update(self._memory.stop(prefix))
        return metrics

    def _evaluate_each(
        self, given: Any, ignore_keys: list[str] | None, prefix: str, **options: Any
    ) -> dict[str, float]:
        """Metrics of several sets, each under its name: those ``given``, or the Trainer's own."""
        metrics: dict[str, float] = {}
        for name, dataset in (self.eval_dataset if given is None else given).items():
            chosen = name if given is None else dataset
            metrics |= self.evaluate(chosen, ignore_keys, f"{prefix}_{name}", **options)
        return metrics

    @leaves_at_once("evaluating")
    def test(
        self,
        test_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
    ) -> dict[str, float]:
        """Metrics over a held-out dataset or loader, or a dict of them by name; of a Module, by its ``test_step``.

        Without data, what the Module's ``test_dataloader`` gives.
        """
        self._require_model()
        chosen = self._data_of_module("test") if test_dataset is None else test_dataset
        if chosen is None:
            raise ValueError("test() needs data: pass a dataset or loader, or define test_dataloader() on the Module.")
        if isinstance(chosen, dict):
            metrics: dict[str, float] = {}
            for name, dataset in chosen.items():
                metrics |= self.test(dataset, ignore_keys, f"{metric_key_prefix}_{name}")
            return metrics
        self._memory.start(metric_key_prefix)
        loader = self.get_test_dataloader(chosen)
        with self._in_stage("test"):
            return self._measured(loader, "Test", "on_predict", ignore_keys, metric_key_prefix)

    @leaves_at_once("predicting")
    def predict(
        self,
        test_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        *,
        test_time_augmentation: Sequence[Transform] | None = None,
    ) -> PredictionOutput:
        """Predictions over ``test_dataset``, its labels, and metrics where it has labels.

        Of a Module, by its ``predict_step``; without data, over what its ``predict_dataloader`` gives.
        ``test_time_augmentation`` is a list of functions on a batch of inputs; the outputs for each are averaged. Put
        ``lambda inputs: inputs`` into the list to count the inputs as they are.
        """
        self._require_model()
        chosen = self._data_of_module("predict") if test_dataset is None else test_dataset
        if chosen is None:
            raise ValueError("predict() needs data: pass a dataset or loader.")
        self._memory.start(metric_key_prefix)
        loader = self.get_test_dataloader(chosen)
        start = time.time()
        self._transforms = list(test_time_augmentation) if test_time_augmentation else None
        try:
            with self._in_stage("predict"):
                output = self.evaluation_loop(
                    loader, description="Prediction", ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix
                )
        finally:
            self._transforms = None
        metrics = output.metrics
        metrics.update(self._speed(metric_key_prefix, start, output.num_samples))
        self._fire("on_predict", metrics=metrics)
        metrics.update(self._memory.stop(metric_key_prefix))
        return PredictionOutput(output.predictions, output.label_ids, metrics)

    _transforms: list[Transform] | None = None
    #: Trying the metric on one batch before training: nothing that callbacks should hear of.
    _is_looking_ahead = False

    def _speed(self, prefix: str, start: float, samples: int) -> dict[str, float]:
        batch = self.args.eval_batch_size * self.args.data_processes
        return speed_metrics(prefix, start, num_samples=samples, num_steps=math.ceil(samples / batch))

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Go through ``dataloader`` with :meth:`prediction_step` and compute the metrics."""
        self._logged = Means()
        self._attach_module()
        loss_only = self.args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
        model = self._evaluation_model()
        self._backend.start(self.args)
        dataloader = shared_evaluation(dataloader, self._place(), data_seed(self.args))
        self.callback_handler.references["eval_dataloader"] = dataloader
        if is_streaming_metric(self.compute_metrics) and hasattr(self.compute_metrics, "to"):
            self.compute_metrics.to(self.args.device)

        def step(batch: Any) -> tuple[Any, Any, Any, Any]:
            kept = self._prepare_inputs(batch) if "inputs" in self.args.include_for_metrics else None
            loss, logits, labels = self._augmented_prediction_step(model, batch, loss_only, ignore_keys)
            if logits is not None and self.preprocess_logits_for_metrics is not None:
                logits = self.preprocess_logits_for_metrics(logits, labels)
            main_input = getattr(self.model, "main_input_name", "input_ids")
            inputs = kept.get(main_input) if isinstance(kept, Mapping) else kept
            return loss, logits, labels, inputs

        plan = EvaluationPlan(
            step=step,
            compute_metrics=None if loss_only else self.compute_metrics,
            keep_predictions=not loss_only,
            concatenate=self.args.eval_do_concat_batches,
            batch_metrics=self.args.batch_eval_metrics,
            include=tuple(self.args.include_for_metrics),
            after_batch=None if self._is_looking_ahead else self._after_prediction_batch,
            prefix=metric_key_prefix,
            order=getattr(dataloader, "sample_order", None),
            # Processes that run in step cannot cut a batch each as it likes.
            micro=MicroBatching(automatic=ours(self.args, "micro_batch") == "auto" and not self.engine.runs_in_step),
            cut=self.split_batch,
            sharing=sharing_of(dataloader, self._place()),
            metric_syncs=self.strategy.copies == 1 and adds_up_over_processes(self.compute_metrics),
            unsynced=lambda: without_sync(self.compute_metrics),
            idle=lambda batch: self._idle(step, batch, dataloader),
        )
        try:
            with half_evaluation(self.args, active=not self.is_in_train):
                return self._with_logged(evaluate(plan, dataloader, self.engine), metric_key_prefix)
        finally:
            close_loader(dataloader)
            self.strategy.settle()
            if self.is_in_train:
                self.engine.train_mode()

    def _idle(self, step: Callable[[Any], Any], batch: Any, loader: Any) -> None:
        """Do what other processes need this one for; nothing of it counts."""
        logged, self._logged = self._logged, Means()
        module = self._module
        try:
            if module is not None:
                module.is_idle = True
            step(loader.filler() if batch is None else batch)
        finally:
            self._logged = logged
            if module is not None:
                module.is_idle = False

    def _after_prediction_batch(self) -> None:
        self._fire("on_prediction_step")
        self._leave_if_asked()

    def _evaluation_model(self) -> nn.Module:
        """The model in evaluation mode; outside training, a half-precision copy where the arguments ask for one."""
        if self.strategy.is_sharded and not self.is_in_train:
            # Before the first training it is still whole, and may not fit like that.
            self._backend.start(self.args)
            self.strategy.spread(self.model, self._backend)
        self.strategy.bring(self.model, self.args.device)
        model = self.model_wrapped if self.is_in_train else self.model
        half = full_eval_dtype(self.args)
        if half is not None and not self.is_in_train:
            # A copy, so that weights that will be trained or saved later keep their precision.
            model = copy.deepcopy(self.model).to(dtype=half, device=self.args.device)
        self.engine.eval_mode(model)
        return self.engine.evaluated(model)

    def _augmented_prediction_step(
        self, model: nn.Module, batch: Any, loss_only: bool, ignore_keys: list[str] | None
    ) -> tuple[Any, Any, Any]:
        if self._transforms is None:
            return self.prediction_step(model, batch, loss_only, ignore_keys=ignore_keys)
        results = []
        for transform in self._transforms:
            inputs = transform(dict(batch) if isinstance(batch, Mapping) else batch)
            results.append(self.prediction_step(model, inputs, loss_only, ignore_keys=ignore_keys))
        losses, logits, labels = zip(*results, strict=True)
        loss = None if losses[0] is None else torch.stack(list(losses)).mean(0)
        return loss, _mean(logits), labels[0]

    def prediction_step(
        self,
        model: nn.Module,
        inputs: Any,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor | None, Any, Any]:
        """(loss, predictions, labels) of one batch; each may be None."""
        if self._module is not None:
            return self._prediction_by_module(model, inputs, prediction_loss_only, ignore_keys)
        inputs = self._prepare_inputs(inputs)
        labels = self._labels_of(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            if labels is not None or self._returns_loss(inputs):
                targets = self.count_targets(inputs) if self._wants_count else None
                loss, outputs = self._call_compute_loss(model, inputs, targets, return_outputs=True)
                loss = loss.detach().mean()
            else:
                loss, outputs = None, self._forward(model, inputs)
        if prediction_loss_only:
            return loss, None, None
        return loss, _predictions(outputs, self._ignored_outputs(ignore_keys)), labels

    # ---- a Module

    #: What a Module's step methods log in the evaluation that is going on.
    _logged = Means()

    @contextmanager
    def _in_stage(self, stage: str) -> Iterator[None]:
        before, self._stage = self._stage, stage
        try:
            yield
        finally:
            self._stage = before

    def _prediction_by_module(
        self, model: nn.Module, inputs: Any, loss_only: bool, ignore_keys: list[str] | None
    ) -> tuple[Tensor | None, Any, Any]:
        """What the step method of this stage returned, as (loss, predictions, labels)."""
        inputs = self._prepare_inputs(inputs)
        step = getattr(self._running_module(model), f"{self._stage}_step")
        assert isinstance(self.engine, ModuleEngine)

        def weight() -> Any:
            targets = self.count_targets(inputs)
            return self.engine.rows(inputs) if targets is None else targets

        logging_here = self.engine.values.evaluating(self._logged, weight)
        with logging_here, torch.no_grad(), self.compute_loss_context_manager():
            outputs = step(inputs)
        loss, outputs, labels = _parts_of(outputs, with_loss=self._stage != "predict")
        loss = None if loss is None else loss.detach().mean()
        if loss_only:
            return loss, None, None
        predictions = None if outputs is None else _predictions(outputs, self._ignored_outputs(ignore_keys))
        if predictions is None and self.compute_metrics is not None:
            raise ValueError(
                f"compute_metrics needs predictions, and {type(self._module).__name__}.{self._stage}_step returns none"
                ': return {"loss": ..., "predictions": ...} from it.'
            )
        return loss, predictions, self._labels_of(inputs) if labels is None else labels

    def _with_logged(self, output: EvalLoopOutput, prefix: str) -> EvalLoopOutput:
        """The evaluation with the means of what a Module logged in it."""
        if isinstance(self.engine, ModuleEngine):
            for name, value in self._logged.read(self.engine.values.gather).items():
                if f"{prefix}_{name}" in output.metrics:
                    raise ValueError(f"{name!r} is logged by the Module and computed by compute_metrics: rename one.")
                output.metrics[f"{prefix}_{name}"] = value
        return output

    def _returns_loss(self, inputs: Any) -> bool:
        asked = inputs.get("return_loss") if isinstance(inputs, Mapping) else None
        return bool(self.can_return_loss if asked is None else asked)

    def _labels_of(self, inputs: Any) -> Any:
        """Detached labels of a batch: one tensor, a tuple where the model takes several, None where any is missing."""
        if not isinstance(inputs, Mapping):
            return find_labels(inputs)
        values = [inputs.get(name) for name in self.label_names]
        present = [value for value in values if value is not None]
        if not present or (len(present) < len(values) and inputs.get("labels") is None):
            return None
        labels = [value.detach() if isinstance(value, Tensor) else value for value in present]
        return labels[0] if len(labels) == 1 else tuple(labels)

    def _ignored_outputs(self, ignore_keys: list[str] | None) -> Iterable[str]:
        if ignore_keys is not None:
            return ignore_keys
        config = getattr(base_model(self.model), "config", None)
        return getattr(config, "keys_to_ignore_at_inference", ["past_key_values"]) if config is not None else []


def _parts_of(outputs: Any, *, with_loss: bool) -> tuple[Tensor | None, Any, Any]:
    """(loss, the other outputs, labels) among what a Module's step method returned; each may be None."""
    if outputs is None:
        return None, None, None
    if isinstance(outputs, Tensor):
        return (outputs, None, None) if with_loss and outputs.ndim == 0 else (None, outputs, None)
    if isinstance(outputs, Mapping):
        rest = {name: value for name, value in outputs.items() if name not in ("loss", "labels")}
        return loss_in(outputs) if with_loss else None, rest or None, outputs.get("labels")
    loss = loss_in(outputs) if with_loss else None
    if loss is None or loss.ndim:
        return None, outputs or None, None
    return loss, tuple(outputs[1:]) or None, None


def _predictions(outputs: Any, ignored: Iterable[str]) -> Any:
    """Everything a model returned but the loss: one tensor, or a tuple of several."""
    skipped = {*ignored, "loss"}
    if dataclasses.is_dataclass(outputs) and not isinstance(outputs, (type, Mapping)):
        outputs = {f.name: getattr(outputs, f.name) for f in dataclasses.fields(outputs)}
    if isinstance(outputs, Mapping):
        values = tuple(value for name, value in outputs.items() if name not in skipped and value is not None)
    elif isinstance(outputs, (tuple, list)):
        begins_with_loss = isinstance(outputs[0], Tensor) and outputs[0].ndim == 0
        values = tuple(outputs[1:] if begins_with_loss else outputs)
    else:
        values = (outputs,)
    values = tuple(_detached(value) for value in values)
    return values[0] if len(values) == 1 else values


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, (tuple, list)):
        return tuple(_detached(item) for item in value)
    return value


def _mean(outputs: Sequence[Any]) -> Any:
    """Mean over several outputs of the same structure."""
    first = outputs[0]
    if first is None:
        return None
    if isinstance(first, tuple):
        return tuple(_mean(column) for column in zip(*outputs, strict=True))
    return torch.stack(list(outputs)).mean(0)
