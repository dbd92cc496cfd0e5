"""How much data one step sees, and for how long."""

from dataclasses import dataclass


@dataclass(kw_only=True)
class BatchFields:
    per_device_train_batch_size: int = 8
    """Samples in one training batch on one device."""

    per_device_eval_batch_size: int = 8
    """Samples in one evaluation batch on one device. It changes speed and memory, never the reported loss."""

    gradient_accumulation_steps: int = 1
    """Batches whose gradients are added up before the weights change once."""

    auto_find_batch_size: bool = False
    """Shorthand for micro_batch="auto": a batch that does not fit is cut into pieces with the same gradient."""

    average_tokens_across_devices: bool = True
    """Count targets over all devices when losses are averaged; always done here."""

    num_train_epochs: float = 3.0
    """Passes over the training data; a fraction stops part-way through the last pass."""

    max_steps: int = -1
    """Weight updates to perform. A positive number overrides num_train_epochs; data without a length needs one."""
