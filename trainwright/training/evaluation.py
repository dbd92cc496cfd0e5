"""Evaluate, test and predict."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.config.limits import evaluation_limit
from trainwright.core.microbatching import MicroBatching
from trainwright.core.results import EvalLoopOutput, PredictionOutput, speed_metrics
from trainwright.core.run import Phase
from trainwright.data.asked_order import data_seed
from trainwright.data.first_batches import first_batches, first_of_evaluation
from trainwright.data.loader import close_loader
from trainwright.data.rebuild import shared_evaluation, sharing_of
from trainwright.engines.torch.logged import Means
from trainwright.engines.torch.loss_functions.base import Loss
from trainwright.engines.torch.metrics import adds_up_over_processes, without_sync
from trainwright.engines.torch.module_engine import ModuleEngine
from trainwright.engines.torch.outputs import mean_of, parts_of, predictions_in
from trainwright.engines.torch.precision import full_eval_dtype, half_evaluation
from trainwright.engines.torch.targets import base_model, find_labels
from trainwright.loop.evaluate import EvaluationPlan, is_streaming_metric
from trainwright.loop.evaluate import evaluate as run_plan
from trainwright.training.checked_metrics import checked_metrics
from trainwright.training.evaluation_data import named_as_evaluation, warn_of_missing_labels
from trainwright.training.evaluation_details import note_predictions
from trainwright.training.hooks import is_overridden
from trainwright.training.losses import prepare_loss
from trainwright.training.modules import attach_module, data_of_module, use_own_eval_data
from trainwright.training.setup import Setup, data_rank, require_model
from trainwright.training.start import wrapped
from trainwright.training.step import call_compute_loss, call_model, running_module
from trainwright.training.stop import leave_if_asked

Transform = Callable[[Any], Any]


def evaluate(
    setup: Setup,
    eval_dataset: Any = None,
    ignore_keys: list[str] | None = None,
    metric_key_prefix: str = "eval",
) -> dict[str, float]:
    """Metrics over ``eval_dataset``, or the Trainer's own; several sets give ``eval_<name>_...`` keys.

    The loss is the mean over all targets: it does not depend on the evaluation batch size.
    """
    require_model(setup)
    use_own_eval_data(setup)
    sets = setup.eval_dataset if eval_dataset is None else eval_dataset
    if isinstance(sets, dict):
        return evaluate_each(setup, eval_dataset, ignore_keys, metric_key_prefix)
    setup.memory.start(metric_key_prefix)
    loader = setup.hooks().get_eval_dataloader(sets)
    # A loader of somebody's own may have another order.
    is_plain = setup.module is None and not is_overridden(setup.hooks(), "get_eval_dataloader")
    dataset = _named_set(setup, eval_dataset) if is_plain else None
    return measure(setup, loader, "Evaluation", "on_evaluate", ignore_keys, metric_key_prefix, dataset)


def _named_set(setup: Setup, given: Any) -> Any:
    if given is None:
        return setup.eval_dataset
    return setup.eval_dataset.get(given) if isinstance(given, str) and isinstance(setup.eval_dataset, dict) else given


def measure(
    setup: Setup,
    loader: object,
    description: str,
    event: str,
    ignore_keys: list[str] | None,
    prefix: str,
    dataset: Any = None,
) -> dict[str, float]:
    """Metrics over one loader, logged and told to callbacks; ``dataset`` is what it reads in order, where known."""
    start = time.time()
    with named_as_evaluation(setup):
        output = setup.hooks().evaluation_loop(
            loader,
            description=description,
            # Without a metric nobody looks at the predictions: do not keep them.
            prediction_loss_only=True if setup.compute_metrics is None else None,
            ignore_keys=ignore_keys,
            metric_key_prefix=prefix,
        )
    metrics = output.metrics
    warn_of_missing_labels(setup, metrics, prefix, dataset)
    metrics.update(speed_of(setup, prefix, start, output.num_samples))
    note_predictions(setup, output, prefix, dataset)
    setup.hooks().log(metrics)
    setup.fire(event, metrics=metrics)
    metrics.update(setup.memory.stop(prefix))
    return metrics


def evaluate_each(
    setup: Setup, given: Any, ignore_keys: list[str] | None, prefix: str, **options: Any
) -> dict[str, float]:
    """Metrics of several sets, each under its name: those ``given``, or the Trainer's own."""
    metrics: dict[str, float] = {}
    for name, dataset in (setup.eval_dataset if given is None else given).items():
        chosen = name if given is None else dataset
        metrics |= setup.hooks().evaluate(chosen, ignore_keys, f"{prefix}_{name}", **options)
    return metrics


def measure_test(
    setup: Setup,
    test_dataset: object = None,
    ignore_keys: list[str] | None = None,
    metric_key_prefix: str = "test",
) -> dict[str, float]:
    """Metrics over a held-out dataset or loader, or a dict of them by name; of a Module, by its ``test_step``.

    Without data, what the Module's ``test_dataloader`` gives.
    """
    require_model(setup)
    chosen = data_of_module(setup, "test") if test_dataset is None else test_dataset
    if chosen is None:
        raise ValueError("test() needs data: pass a dataset or loader, or define test_dataloader() on the Module.")
    if isinstance(chosen, dict):
        metrics: dict[str, float] = {}
        for name, dataset in chosen.items():
            metrics |= setup.hooks().test(dataset, ignore_keys, f"{metric_key_prefix}_{name}")
        return metrics
    setup.memory.start(metric_key_prefix)
    loader = setup.hooks().get_test_dataloader(chosen)
    with in_stage(setup, "test"):
        return measure(setup, loader, "Test", "on_predict", ignore_keys, metric_key_prefix)


def predict(
    setup: Setup,
    test_dataset: object = None,
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
    require_model(setup)
    chosen = data_of_module(setup, "predict") if test_dataset is None else test_dataset
    if chosen is None:
        raise ValueError("predict() needs data: pass a dataset or loader.")
    setup.memory.start(metric_key_prefix)
    loader = setup.hooks().get_test_dataloader(chosen)
    start = time.time()
    setup.evaluation.transforms = list(test_time_augmentation) if test_time_augmentation else None
    try:
        with in_stage(setup, "predict"):
            output = setup.hooks().evaluation_loop(
                loader, description="Prediction", ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix
            )
    finally:
        setup.evaluation.transforms = None
    metrics = output.metrics
    metrics.update(speed_of(setup, metric_key_prefix, start, output.num_samples))
    setup.fire("on_predict", metrics=metrics)
    metrics.update(setup.memory.stop(metric_key_prefix))
    return PredictionOutput(output.predictions, output.label_ids, metrics)


def speed_of(setup: Setup, prefix: str, start: float, samples: int) -> dict[str, float]:
    batch = setup.args.eval_batch_size * setup.args.data_processes
    return speed_metrics(prefix, start, num_samples=samples, num_steps=math.ceil(samples / batch))


def evaluation_loop(
    setup: Setup,
    dataloader: Any,
    description: str,
    prediction_loss_only: bool | None = None,
    ignore_keys: list[str] | None = None,
    metric_key_prefix: str = "eval",
) -> EvalLoopOutput:
    """Go through ``dataloader`` with :meth:`prediction_step` and compute the metrics."""
    setup.evaluation.logged = Means()
    attach_module(setup)
    prepare_loss(setup, anew=False)
    loss_only = setup.args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
    model = evaluation_model(setup, dataloader)
    setup.backend.start(setup.given_args)
    limit = evaluation_limit(setup.args, setup.evaluation.stage)
    dataloader, limit = first_of_evaluation(dataloader, limit, data_rank(setup), data_seed(setup.args))
    dataloader = shared_evaluation(dataloader, data_rank(setup), data_seed(setup.args))
    batches = setup.callbacks.references["eval_dataloader"] = first_batches(dataloader, limit)
    if is_streaming_metric(setup.compute_metrics) and hasattr(setup.compute_metrics, "to"):
        setup.compute_metrics.to(setup.args.device)

    def step(batch: Any) -> tuple[Any, Any, Any, Any]:
        kept = setup.hooks()._prepare_inputs(batch) if "inputs" in setup.args.include_for_metrics else None
        loss, logits, labels = augmented_prediction_step(setup, model, batch, loss_only, ignore_keys)
        if logits is not None and setup.preprocess_logits_for_metrics is not None:
            logits = setup.preprocess_logits_for_metrics(logits, labels)
        main_input = getattr(setup.model, "main_input_name", "input_ids")
        inputs = kept.get(main_input) if isinstance(kept, Mapping) else kept
        return loss, logits, labels, inputs

    plan = EvaluationPlan(
        step=step,
        compute_metrics=None if loss_only else checked_metrics(setup.compute_metrics),
        keep_predictions=not loss_only,
        concatenate=setup.args.eval_do_concat_batches,
        batch_metrics=setup.args.batch_eval_metrics,
        include=tuple(setup.args.include_for_metrics),
        after_batch=None if setup.evaluation.is_trial else partial(after_prediction_batch, setup),
        prefix=metric_key_prefix,
        order=getattr(dataloader, "sample_order", None),
        # Processes that run in step cannot cut a batch each as it likes.
        micro=MicroBatching(automatic=setup.args.micro_batch == "auto" and not setup.engine.runs_in_step),
        cut=setup.hooks().split_batch,
        sharing=sharing_of(dataloader, data_rank(setup)),
        metric_syncs=setup.engine.weights.layout.copies == 1 and adds_up_over_processes(setup.compute_metrics),
        unsynced=lambda: without_sync(setup.compute_metrics),
        idle=lambda batch: keep_in_step(setup, step, batch, dataloader),
    )
    try:
        with half_evaluation(setup.args, active=not setup.is_in_train):
            return with_logged(setup, run_plan(plan, batches, setup.engine), metric_key_prefix)
    finally:
        close_loader(dataloader)
        setup.engine.weights.settle()
        if setup.is_in_train:
            setup.engine.train_mode()
            if setup.run is not None and setup.run.phase in (Phase.BETWEEN, Phase.EVALUATION):
                # Callbacks that show samples, or sort metrics by the mode, come now; the next step ends it.
                setup.engine.appear_evaluated()


def keep_in_step(setup: Setup, step: Callable[[Any], Any], batch: Any, loader: Any) -> None:
    """Do what other processes need this one for; nothing of it counts."""
    logged, setup.evaluation.logged = setup.evaluation.logged, Means()
    module = setup.module
    try:
        if module is not None:
            module.is_idle = True
        step(loader.filler() if batch is None else batch)
    finally:
        setup.evaluation.logged = logged
        if module is not None:
            module.is_idle = False


def after_prediction_batch(setup: Setup) -> None:
    setup.fire("on_prediction_step")
    if setup.run is not None:
        leave_if_asked(setup.run)


def evaluation_model(setup: Setup, dataloader: Any = None) -> nn.Module:
    """The model in evaluation mode; outside training, a half-precision copy where the arguments ask for one."""
    if setup.engine.weights.layout.in_parts and not setup.is_in_train:
        # Before the first training it is still whole, and may not fit like that.
        setup.backend.start(setup.given_args)
        setup.engine.weights.spread(setup.model, setup.backend)
    setup.engine.weights.bring(setup.model, setup.args.device)
    model = setup.model_wrapped if setup.is_in_train else setup.model
    if is_overridden(setup.hooks(), "_wrap_model"):
        model = wrapped(setup, setup.model, training=False)
    half = full_eval_dtype(setup.args)
    if half is not None and not setup.is_in_train:
        # A copy, so that weights that will be trained or saved later keep their precision.
        model = copy.deepcopy(setup.model).to(dtype=half, device=setup.args.device)
    setup.engine.eval_mode(model)
    return setup.engine.evaluated(model)


def augmented_prediction_step(
    setup: Setup, model: nn.Module, batch: object, loss_only: bool, ignore_keys: list[str] | None
) -> tuple[Any, Any, Any]:
    if setup.evaluation.transforms is None:
        return setup.hooks().prediction_step(model, batch, loss_only, ignore_keys=ignore_keys)
    results = []
    for transform in setup.evaluation.transforms:
        inputs = transform(dict(batch) if isinstance(batch, Mapping) else batch)
        results.append(setup.hooks().prediction_step(model, inputs, loss_only, ignore_keys=ignore_keys))
    losses, logits, labels = zip(*results, strict=True)
    loss = None if losses[0] is None else torch.stack(list(losses)).mean(0)
    return loss, mean_of(logits), labels[0]


def prediction_step(
    setup: Setup,
    model: nn.Module,
    inputs: object,
    prediction_loss_only: bool,
    ignore_keys: list[str] | None = None,
) -> tuple[Tensor | None, Any, Any]:
    """(loss, predictions, labels) of one batch; each may be None."""
    if setup.module is not None:
        return prediction_by_module(setup, model, inputs, prediction_loss_only, ignore_keys)
    inputs = setup.hooks()._prepare_inputs(inputs)
    labels = labels_of(setup, inputs)
    with torch.no_grad(), setup.hooks().compute_loss_context_manager():
        if labels is not None or returns_loss(setup, inputs):
            targets = setup.hooks().count_targets(inputs) if setup.calling.wants_count else None
            loss, outputs = call_compute_loss(setup, model, inputs, targets, return_outputs=True)
            loss = loss.detach().mean()
        else:
            loss, outputs = None, call_model(model, inputs)
    if prediction_loss_only:
        return loss, None, None
    return loss, predictions_in(outputs, ignored_outputs(setup, ignore_keys)), labels


@contextmanager
def in_stage(setup: Setup, stage: str) -> Iterator[None]:
    before, setup.evaluation.stage = setup.evaluation.stage, stage
    try:
        yield
    finally:
        setup.evaluation.stage = before


def prediction_by_module(
    setup: Setup, model: nn.Module, inputs: object, loss_only: bool, ignore_keys: list[str] | None
) -> tuple[Tensor | None, Any, Any]:
    """What the step method of this stage returned, as (loss, predictions, labels)."""
    inputs = setup.hooks()._prepare_inputs(inputs)
    step = getattr(running_module(model), f"{setup.evaluation.stage}_step")
    assert isinstance(setup.engine, ModuleEngine)

    def weight() -> Any:
        targets = setup.hooks().count_targets(inputs)
        return setup.engine.rows(inputs) if targets is None else targets

    logging_here = setup.engine.values.evaluating(setup.evaluation.logged, weight)
    with logging_here, torch.no_grad(), setup.hooks().compute_loss_context_manager():
        outputs = step(inputs)
    loss, outputs, labels = parts_of(outputs, with_loss=setup.evaluation.stage != "predict")
    loss = None if loss is None else loss.detach().mean()
    if loss_only:
        return loss, None, None
    predictions = None if outputs is None else predictions_in(outputs, ignored_outputs(setup, ignore_keys))
    if predictions is None and setup.compute_metrics is not None:
        raise ValueError(
            f"compute_metrics needs predictions, and {type(setup.module).__name__}.{setup.evaluation.stage}_step "
            'returns none: return {"loss": ..., "predictions": ...} from it.'
        )
    return loss, predictions, labels_of(setup, inputs) if labels is None else labels


def with_logged(setup: Setup, output: EvalLoopOutput, prefix: str) -> EvalLoopOutput:
    """The evaluation with the means of what a Module logged in it."""
    if isinstance(setup.engine, ModuleEngine):
        for name, value in setup.evaluation.logged.read(setup.engine.values.gather).items():
            if f"{prefix}_{name}" in output.metrics:
                raise ValueError(f"{name!r} is logged by the Module and computed by compute_metrics: rename one.")
            output.metrics[f"{prefix}_{name}"] = value
    return output


def returns_loss(setup: Setup, inputs: object) -> bool:
    asked = inputs.get("return_loss") if isinstance(inputs, Mapping) else None
    function = setup.compute_loss_func
    can = setup.can_return_loss or (isinstance(function, Loss) and not function.needs_labels)
    return bool(can if asked is None else asked)


def labels_of(setup: Setup, inputs: object) -> Any:
    """Detached labels of a batch: one tensor, a tuple where the model takes several, None where any is missing."""
    if not isinstance(inputs, Mapping):
        return find_labels(inputs)
    values = [inputs.get(name) for name in setup.label_names]
    present = [value for value in values if value is not None]
    if not present or (len(present) < len(values) and inputs.get("labels") is None):
        return None
    labels = [value.detach() if isinstance(value, Tensor) else value for value in present]
    return labels[0] if len(labels) == 1 else tuple(labels)


def ignored_outputs(setup: Setup, ignore_keys: list[str] | None) -> Iterable[str]:
    if ignore_keys is not None:
        return ignore_keys
    config = getattr(base_model(setup.model), "config", None)
    return getattr(config, "keys_to_ignore_at_inference", ["past_key_values"]) if config is not None else []
