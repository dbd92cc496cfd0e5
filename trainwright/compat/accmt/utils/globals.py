"""What the launcher has told this process, as it was when this was imported."""

from __future__ import annotations

import os

from trainwright.config.backends import rank_from_environment

_PLACE = rank_from_environment()
WORLD_SIZE, RANK = _PLACE.world_size, _PLACE.rank
MASTER_PROCESS, LAST_PROCESS = RANK == 0, RANK == WORLD_SIZE - 1
IS_CPU = os.environ.get("ACCMT_CPU", "0") == "1"
IS_GPU = not IS_CPU
DEBUG_MODE = int(os.environ.get("ACCMT_DEBUG_MODE", "0"))
DEBUG_TIMINGS = os.environ.get("ACCMT_DEBUG_TIMINGS", "0") == "1"
ASYNC = os.environ.get("ACCMT_ASYNC", "0") == "1"
ASYNC_TRAIN_GROUP = os.environ.get("ACCMT_TRAIN_GROUP", "0") == "1"
