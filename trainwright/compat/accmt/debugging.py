"""Debug levels: ``accmt debug --level N`` tries a script without the traces that a training leaves."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainwright.compat.accmt.settings import Settings

logger = logging.getLogger("trainwright")

#: How ``debug`` tells the processes it starts.
VARIABLE = "ACCMT_DEBUG_MODE"
#: How ``--debug-timings`` does.
VARIABLE_OF_TIMINGS = "ACCMT_DEBUG_TIMINGS"
LEVELS = {
    1: "no tracker is told anything, and data is loaded in the process itself, so that breakpoints work",
    2: "as 1, and nothing is compiled",
    3: "as 2, and no model and no checkpoint is written or read",
    4: "as 3, and no evaluation before the first step",
    5: "as 4, and no evaluation at all",
}


def debug_level(environment: Mapping[str, str] = os.environ) -> int:
    """The level that this process was started with; 0 outside of debugging.

    >>> debug_level({"ACCMT_DEBUG_MODE": "3"}), debug_level({})
    (3, 0)
    """
    text = environment.get(VARIABLE) or "0"
    if text != "0" and (not text.isdecimal() or int(text) not in LEVELS):
        raise ValueError(f"{VARIABLE}={text}: the levels are {', '.join(map(str, LEVELS))}.")
    return int(text)


def set_for_debugging(settings: Settings, level: int) -> None:
    """Switch off what a level leaves out; the settings have been checked as they were given."""
    if not level:
        return
    logger.info("%s=%d: %s.", VARIABLE, level, LEVELS[level])
    later = settings.later
    settings.dataloader_num_workers = 0
    settings.log_with, settings.logging_dir = None, "logs"
    if level >= 2:
        settings.compile, later.compile_kwargs = False, None
    if level >= 3:
        later.disable_model_saving, later.enable_checkpointing, settings.resume = True, False, False
        # Elsewhere: beginning anew would put the checkpoints of a real training aside.
        settings.checkpoint = tempfile.mkdtemp(prefix="accmt-debug-")
    if level >= 4:
        settings.eval_when_start = False
    if level >= 5:
        later.patience = None
