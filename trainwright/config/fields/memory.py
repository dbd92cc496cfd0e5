"""Trading time for memory."""

from dataclasses import dataclass
from typing import Any

from trainwright.config.removal import second_name


@dataclass(kw_only=True)
class MemoryFields:
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass instead of keeping them."""

    gradient_checkpointing_kwargs: dict[str, Any] | str | None = None
    """Options for the model's gradient_checkpointing_enable, as a dict or JSON text."""

    activation_checkpointing: bool | None = second_name()
    """The same as gradient_checkpointing: its name from transformers 5.23 on."""

    activation_checkpointing_kwargs: dict[str, Any] | str | None = second_name()  # noqa: RUF009
    """The same as gradient_checkpointing_kwargs."""

    torch_empty_cache_steps: int | None = None
    """Give the device's cached memory back every so many steps; unset never does."""

    use_cache: bool = False
    """Let the model build its key/value cache while training."""
