"""Arguments transformers does not have."""

from dataclasses import dataclass, field
from typing import Any

from trainwright.config.engines import ENGINES, default_engine


@dataclass(kw_only=True)
class NativeFields:
    micro_batch: int | str | None = None
    """Largest piece of a batch that runs at once: a number, or "auto" to find what fits; the gradient is the same."""

    acceleration: None | str | list[str] = "auto"  # noqa: RUF036
    """What makes a training faster at the same results: "auto", "off", "max", or names such as ["blocks", "logits"]
    (docs/speed.md)."""

    memory_budget: float | None = None
    """Share of what compiled blocks would keep for the backward pass that they do keep, from 0 to 1; the rest is
    computed again. Less memory for more time, with the same gradients (docs/speed.md)."""

    backend: str | None = None
    """How the run is spread: "sp" (one process), "ddp", "fsdp", "deepspeed" or the name of a registered strategy, each
    with -amp, -bf16 or -fp16."""

    tensor_parallel_size: int = 1
    """Processes that compute single layers together, for models that carry a plan; the others share out the data."""

    set_grads_to_none: bool = True
    """Forget gradients after each step; false fills them with zeros, which a few optimizers take otherwise."""

    max_tokens_per_batch: int | None = None
    """Build training batches up to this many tokens (padding included) instead of a fixed number of samples."""

    sampling_column: str | None = None
    """With train_sampling_strategy="balanced": the column whose values are drawn alike; by default the label."""

    sampling_temperature: float | None = None
    """With "balanced": values with the share p are drawn in proportion to p^(1/temperature). 1 leaves the shares of the
    data; without one, all are drawn alike."""

    profile: str | None = None
    """Write a profiler trace of these steps into output_dir, for example "steps 5-10"."""

    log_loss_per: str | None = None
    """Log the training loss of each group of samples too: "class", or the name of a column, such as "source"."""

    log_histograms: int | None = None
    """At every so many logs, how the numbers of each weight and each gradient are spread: in histograms.jsonl in the
    run directory, and in trackers that show histograms."""

    tracker_options: dict[str, Any] | str | None = None
    """Options of trackers by name, for example {"wandb": {"entity": "us"}}; docs/trackers.md lists them."""

    tags: list[str] | None = None
    """Tags of the run in trackers."""

    best_model_after_epoch: float | None = None
    """Evaluations before this epoch are not the best; by default, those before a recipe has finished with the model."""

    engine: str = field(default_factory=default_engine, metadata={"choices": ENGINES})
    """Framework that does the computing: "torch", or "mindspore" or "jax" for torch models as they are."""

    engine_jit: bool = True
    """Whether another engine than torch compiles the training step into one graph; off, it runs op by op."""

    engine_check: bool = True
    """Whether the first batch on another engine than torch is also computed by torch, and a difference refused."""

    engine_devices: int = 1
    """Devices among which engine="jax" shares each batch, in one process; per_device_train_batch_size is for each."""
