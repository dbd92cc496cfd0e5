"""What ``accmt.utils`` offers scripts."""

from trainwright.compat.accmt.utils.data import (
    divide_into_batches,
    divide_list,
    get_array_partition,
    iterbatch,
    prepare,
    prepare_array,
    prepare_dataframe,
)
from trainwright.compat.accmt.utils.distributed import (
    all_gather_dictionary,
    gather,
    gather_into_single_process,
    gather_object,
)
from trainwright.compat.accmt.utils.globals import (
    ASYNC,
    ASYNC_TRAIN_GROUP,
    DEBUG_MODE,
    DEBUG_TIMINGS,
    IS_CPU,
    IS_GPU,
    LAST_PROCESS,
    MASTER_PROCESS,
    RANK,
    WORLD_SIZE,
)
from trainwright.compat.accmt.utils.misc import (
    clear_device_cache,
    combine_dicts,
    filter_kwargs,
    get_number_and_unit,
    get_time_prefix,
    global_randint,
    is_url,
    rprint,
)
from trainwright.compat.accmt.utils.seed import get_seed, set_seed
from trainwright.compat.accmt.utils.tensor import drop_duplicates, pad

__all__ = [
    "ASYNC",
    "ASYNC_TRAIN_GROUP",
    "DEBUG_MODE",
    "DEBUG_TIMINGS",
    "IS_CPU",
    "IS_GPU",
    "LAST_PROCESS",
    "MASTER_PROCESS",
    "RANK",
    "WORLD_SIZE",
    "all_gather_dictionary",
    "clear_device_cache",
    "combine_dicts",
    "divide_into_batches",
    "divide_list",
    "drop_duplicates",
    "filter_kwargs",
    "gather",
    "gather_into_single_process",
    "gather_object",
    "get_array_partition",
    "get_number_and_unit",
    "get_seed",
    "get_time_prefix",
    "global_randint",
    "is_url",
    "iterbatch",
    "pad",
    "prepare",
    "prepare_array",
    "prepare_dataframe",
    "rprint",
    "set_seed",
]
