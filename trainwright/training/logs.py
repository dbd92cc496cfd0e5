"""``Trainer.log``."""

from __future__ import annotations

from trainwright.core.results import speed_metrics
from trainwright.training.setup import Setup


def write_log(setup: Setup, logs: dict[str, float], start_time: float | None = None) -> None:
    """Append ``logs`` to ``state.log_history`` and tell the callbacks."""
    if setup.state.epoch is not None:
        logs["epoch"] = setup.state.epoch
    if setup.args.include_num_input_tokens_seen != "no":
        logs["num_input_tokens_seen"] = setup.state.num_input_tokens_seen
        if start_time is not None:
            before = 0 if setup.run is None else setup.run.tokens_at_start
            tokens = setup.state.num_input_tokens_seen - before
            logs.update(speed_metrics("train", start_time, num_tokens=tokens))
    setup.state.log_history.append({**logs, "step": setup.state.global_step})
    setup.control.should_log = False
    # Callbacks may add to a log, change it, and leave out what should not be shown; results lose nothing by that.
    shown = dict(logs)
    setup.fire("on_log", logs=shown)
    logs.update(shown)
