"""Seeds, debugging, and flags for scripts."""

from dataclasses import dataclass

from trainwright.config.enums import DebugOption


@dataclass(kw_only=True)
class MiscFields:
    seed: int = 42
    """Seed of every random number in the run."""

    data_seed: int | None = None
    """Seed of the data order alone; unset uses seed."""

    full_determinism: bool = False
    """Use only deterministic kernels; slower."""

    debug: str | list[DebugOption] = ""
    """Debugging aids, separated by spaces: "underflow_overflow"."""

    do_train: bool = False
    """A flag for your script; the Trainer does not read it."""

    do_eval: bool = False
    """A flag for your script; set by itself when eval_strategy is not "no"."""

    do_predict: bool = False
    """A flag for your script; the Trainer does not read it."""
