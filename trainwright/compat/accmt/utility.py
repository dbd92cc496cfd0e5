"""``accmt.utility``, as ``accmt.utils`` was called before version 1.9."""

from trainwright.compat.accmt.utils import (
    DEBUG_MODE,
    IS_CPU,
    IS_GPU,
    LAST_PROCESS,
    MASTER_PROCESS,
    RANK,
    WORLD_SIZE,
    prepare,
    prepare_array,
    prepare_dataframe,
)

__all__ = [
    "DEBUG_MODE",
    "IS_CPU",
    "IS_GPU",
    "LAST_PROCESS",
    "MASTER_PROCESS",
    "RANK",
    "WORLD_SIZE",
    "prepare",
    "prepare_array",
    "prepare_dataframe",
]
