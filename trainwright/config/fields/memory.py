"""Trading time for memory."""

from dataclasses import dataclass
from typing import Any


@dataclass(kw_only=True)
class MemoryFields:
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass instead of keeping them."""

    gradient_checkpointing_kwargs: dict[str, Any] | str | None = None
    """Options for the model's gradient_checkpointing_enable, as a dict or JSON text."""

    torch_empty_cache_steps: int | None = None
    """Give the device's cached memory back every so many steps; unset never does."""

    use_cache: bool = False
    """Let the model build its key/value cache while training."""
