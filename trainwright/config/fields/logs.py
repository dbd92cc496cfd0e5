"""What is logged, how often, and to whom."""

import os
from dataclasses import dataclass, field
from typing import Literal

from trainwright.config.enums import IntervalStrategy

LOG_LEVELS: dict[str, int] = {
    "detail": 10,
    "debug": 10,
    "info": 20,
    "warning": 30,
    "error": 40,
    "critical": 50,
    "passive": -1,
}
"""Words for log_level; "passive" keeps whatever level the application has set."""


class NotGiven(str):
    """A default that equals its word but can still be told from the same word typed by the user."""

    def __str__(self) -> str:
        # argparse passes string defaults through str(); returning self keeps the mark.
        return self


NOT_GIVEN = NotGiven("none")


REPORT_VARIABLE = "TRAINWRIGHT_REPORT"
"""Environment variable that sets the default of write_report: 0 for a thousand small trainings."""


def _default_report() -> bool:
    return os.environ.get(REPORT_VARIABLE, "1") not in ("0", "false", "")


@dataclass(kw_only=True)
class LogFields:
    logging_strategy: IntervalStrategy | str = "steps"
    """Log never ("no"), every logging_steps ("steps") or after each epoch ("epoch")."""

    logging_steps: float = 500
    """Steps between log lines; below 1 it is a share of all steps."""

    logging_first_step: bool = False
    """Log the very first step too."""

    logging_nan_inf_filter: bool = True
    """Leave non-finite losses out of the logged average; training itself is not changed."""

    log_level: str = field(default="passive", metadata={"choices": tuple(LOG_LEVELS)})
    """Log level of the main process; "passive" keeps the application's."""

    log_level_replica: str = field(default="warning", metadata={"choices": tuple(LOG_LEVELS)})
    """Log level of the other processes."""

    log_on_each_node: bool = True
    """Log once per machine instead of once per run."""

    disable_tqdm: bool | None = None
    """Hide progress bars; unset hides them when only errors are logged."""

    write_report: bool = field(default_factory=_default_report)
    """Write report.html and report.md into output_dir when training ends, also where it fails or is stopped."""

    # HfArgumentParser takes the second member of a union as the type, so None comes first on purpose.
    report_to: None | str | list[str] = NOT_GIVEN  # noqa: RUF036
    """Trackers to write to: "none", "all" (those installed), names like "tensorboard", "my_file.py:MyTracker", classes
    or objects of one's own, or a list of these; see docs/trackers.md."""

    run_name: str | None = None
    """A name for the run in trackers."""

    project: str = "huggingface"
    """Project (or experiment) of the run in trackers; left as it is, ours use "trainwright"."""

    trackio_space_id: str | None = None
    """Space that shows the run while it goes on, with report_to="trackio"; unset keeps everything on this machine."""

    trackio_bucket_id: str | None = None
    """Bucket for the data of Trackio's Space; unset lets Trackio choose one."""

    # Here it must be the None that comes second.
    trackio_static_space_id: str | None | Literal[False] = None  # noqa: RUF036
    """Public Space that Trackio's results become when training is done; unset and False for none."""

    include_num_input_tokens_seen: str | bool = "no"
    """Count input tokens: "all", "non_padding" or "no"; true and false mean "all" and "no"."""

    skip_memory_metrics: bool = True
    """Leave memory measurements out of the metrics."""
