"""Pushing to the Hugging Face Hub."""

from dataclasses import dataclass, field

from trainwright.config.enums import HubStrategy


@dataclass(kw_only=True)
class HubFields:
    push_to_hub: bool = False
    """Upload the model to the Hub, as hub_strategy says."""

    # Secrets stay out of any repr, also one that dataclasses generate for a subclass.
    hub_token: str | None = field(default=None, repr=False)
    """Access token; unset uses the one stored by `hf auth login`."""

    hub_private_repo: bool | None = None
    """Create the repository as private."""

    hub_model_id: str | None = None
    """Repository to push to; unset uses the name of output_dir."""

    hub_strategy: HubStrategy | str = "every_save"
    """Push at the "end", at "every_save", also the last "checkpoint", or "all_checkpoints"."""

    hub_always_push: bool = False
    """Push even while an earlier push is still running."""

    hub_revision: str | None = None
    """Branch to push to."""
