"""Where results go, when checkpoints are written, and how a run is resumed."""

from dataclasses import dataclass, field

from trainwright.config.enums import SaveStrategy


@dataclass(kw_only=True)
class SavingFields:
    # The only argument that may be given by position, as in TrainingArguments("out").
    output_dir: str | None = field(default=None, kw_only=False)
    """Directory for checkpoints, metrics and the final model; "trainer_output" when unset."""

    save_strategy: SaveStrategy | str = "steps"
    """Save never ("no"), every save_steps ("steps"), each epoch ("epoch") or on improvement ("best")."""

    save_steps: float = 500
    """Steps between checkpoints; below 1 it is a share of all steps."""

    save_total_limit: int | None = None
    """Checkpoints to keep; the oldest go first, the best one is never deleted. Unset keeps all."""

    save_only_model: bool = False
    """Write weights without optimizer, schedule and random state; such a checkpoint cannot be resumed."""

    save_on_each_node: bool = False
    """Save on every machine of a multi-machine run instead of only the first."""

    enable_jit_checkpoint: bool = False
    """Saving on preemption is on by default (handle_signals); this also saves when save_strategy is "no"."""

    resume_from_checkpoint: str | None = None
    """A checkpoint path for your own script to hand to train(); the Trainer does not read it."""

    ignore_data_skip: bool = False
    """After resuming start at the beginning of the data instead of where the run had stopped."""

    restore_callback_states_from_checkpoint: bool = False
    """Give callbacks the state they had in the checkpoint."""
