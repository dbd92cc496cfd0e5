"""``fast_dev_run``: a few batches of everything a script does, of which nothing is kept."""

from __future__ import annotations

import dataclasses
import logging
import math
import shutil
import tempfile
import weakref
from typing import Any

from trainwright.config.fields import is_ours, ours
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")

#: What would keep something, or tell others of the run.
NOTHING_IS_KEPT: dict[str, Any] = {
    "checkpoint_every": None,
    "enable_jit_checkpoint": False,
    "keep_every": None,
    "load_best_model_at_end": False,
    "logging_dir": None,
    "max_hours": None,
    "profile": None,
    "push_to_hub": False,
    "report_to": "none",
    "rescue_on": [],
    "resume": None,
    "resume_from_checkpoint": None,
    "rewind_on_nonfinite": False,
    "save_best": False,
    "save_strategy": "no",
    "take_over": False,
    "tracker_options": None,
    "write_report": False,
}


def arguments_to_try(setup: Setup, given: Any) -> Any:
    """``given``; with ``fast_dev_run``, a copy for a run of a few batches in a folder that goes with the Trainer."""
    batches: Any = ours(given).fast_dev_run
    if batches is None:
        return given
    folder = tempfile.mkdtemp(prefix="trainwright-try-")
    weakref.finalize(setup.hooks(), shutil.rmtree, folder, ignore_errors=True)
    steps = math.ceil(batches / given.gradient_accumulation_steps)
    settings = {
        **NOTHING_IS_KEPT,
        "output_dir": folder,
        "max_steps": steps,
        "limit_train_batches": batches,
        "limit_eval_batches": batches,
        "limit_predict_batches": batches,
        "log_every": None,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "metric_for_best_model": given.metric_for_best_model,
        "greater_is_better": given.greater_is_better,
        "best_model_after_epoch": None,
    }
    if given.eval_strategy != "no":
        settings |= {"evaluate_every": None, "eval_strategy": "steps", "eval_steps": steps, "eval_delay": 0}
    fields = {field.name for field in dataclasses.fields(given) if field.init}
    known = {name: value for name, value in settings.items() if name in fields and is_ours(given, name)}
    return dataclasses.replace(given, **known)


def starts_anew(setup: Setup, wanted: Any) -> Any:
    """The checkpoint to go on from, as it was asked for; a try goes on from none."""
    if not setup.args.fast_dev_run:
        return wanted
    if wanted not in (None, False):
        logger.warning("fast_dev_run tries a run from its start: resume_from_checkpoint is left out.")
    return None


def say_it_was_a_try(setup: Setup) -> None:
    """After the last step, so that nobody takes the numbers for those of a training."""
    if setup.args.fast_dev_run and setup.args.process_index == 0:
        logger.warning(
            "That was a fast_dev_run: %d batch%s of each kind, and nothing was kept. Leave fast_dev_run out to train.",
            setup.args.fast_dev_run,
            "" if setup.args.fast_dev_run == 1 else "es",
        )
