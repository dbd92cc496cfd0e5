"""When the model is evaluated, what is computed, and which checkpoint counts as the best."""

from dataclasses import dataclass, field

from trainwright.config.enums import IntervalStrategy


@dataclass(kw_only=True)
class EvaluationFields:
    eval_strategy: IntervalStrategy | str = "no"
    """Evaluate never ("no"), every eval_steps ("steps") or after each epoch ("epoch")."""

    eval_steps: float | None = None
    """Steps between evaluations; below 1 it is a share of all steps; unset takes logging_steps."""

    eval_delay: float = 0
    """Epochs or steps (as eval_strategy counts) before the first evaluation."""

    eval_on_start: bool = False
    """Evaluate once before the first step, so that a broken metric shows at once."""

    prediction_loss_only: bool = False
    """Report only the loss; predictions are neither kept nor passed to metrics."""

    eval_accumulation_steps: int | None = None
    """Evaluation batches kept on the device before they move to main memory."""

    eval_do_concat_batches: bool = True
    """Join predictions of all batches into one array; otherwise they stay a list with one entry per batch."""

    eval_use_gather_object: bool = False
    """Gather arbitrary Python objects over processes; with one process there is nothing to gather."""

    batch_eval_metrics: bool = False
    """Call the metric after every batch, with compute_result=True at the last, so predictions need not be kept."""

    include_for_metrics: list[str] = field(default_factory=list)
    """What compute_metrics receives besides predictions and labels: "inputs", "loss"."""

    load_best_model_at_end: bool = False
    """Finish with the weights of the best evaluation rather than the last step."""

    metric_for_best_model: str | None = None
    """Metric that decides which evaluation is best; "loss" where one is needed and none is named."""

    greater_is_better: bool | None = None
    """Whether a higher metric is better; unset means yes unless the metric's name ends in "loss"."""

    label_names: list[str] | None = None
    """Keys of a batch that hold labels; unset asks the model's signature."""
