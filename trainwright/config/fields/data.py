"""How batches are read and in which order."""

from dataclasses import dataclass, field

WORKER_START_METHODS = ("fork", "spawn", "forkserver")


@dataclass(kw_only=True)
class DataFields:
    dataloader_num_workers: int | str = 0
    """Worker processes that load data; 0 loads in the main process, "auto" takes the cores to spare (at most 8), and
    none for data in memory and streams."""

    dataloader_pin_memory: bool = True
    """Put batches in page-locked memory so that copies to a GPU overlap with work."""

    dataloader_persistent_workers: bool = False
    """Keep worker processes alive between epochs."""

    dataloader_prefetch_factor: int | None = None
    """Batches each worker prepares ahead."""

    dataloader_drop_last: bool = False
    """Leave out the last batch of an epoch when it is not full."""

    dataloader_multiprocessing_context: str | None = field(default=None, metadata={"choices": WORKER_START_METHODS})
    """How worker processes are started: "fork", "spawn" or "forkserver"."""

    dataloader_in_order: bool = True
    """Yield batches in the order they were asked for; otherwise as soon as one is ready."""

    remove_unused_columns: bool = True
    """Drop dataset columns the model's forward does not take; what is dropped is said."""

    train_sampling_strategy: str = field(
        default="random", metadata={"choices": ("random", "sequential", "group_by_length", "balanced")}
    )
    """Order of training samples: "random", "sequential", "group_by_length", or "balanced", which draws them with
    repetition so that each class comes equally often (see sampling_temperature)."""

    length_column_name: str = "length"
    """Column with each sample's length, so that grouping by length need not read the data."""
