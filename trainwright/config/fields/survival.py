"""How a run outlives what goes wrong: when it saves, how it stops and starts again, what it does when it gets stuck."""

import os
from dataclasses import dataclass, field

FORMAT_VARIABLE = "TRAINWRIGHT_CHECKPOINT_FORMAT"
"""Environment variable that sets the default of checkpoint_format, for a whole cluster at once."""


def _default_format() -> str:
    return os.environ.get(FORMAT_VARIABLE) or "trainwright"


@dataclass(kw_only=True)
class SurvivalFields:
    checkpoint_every: str | None = None
    """When to save, for example "500 steps", "30 minutes", "1 epoch or 2 hours", "10%"; replaces save_strategy."""

    evaluate_every: str | None = None
    """When to evaluate, written like checkpoint_every; replaces eval_strategy."""

    eval_on_end: bool = True
    """Where evaluations come every so many steps, evaluate after the last step too."""

    log_every: str | None = None
    """When to log, written like checkpoint_every; replaces logging_strategy."""

    save_best: bool = False
    """Also save whenever an evaluation improved the tracked metric, whatever the saving interval."""

    keep_every: int | None = None
    """Checkpoints at multiples of this many steps are kept for good, besides save_total_limit."""

    resume: str | None = None
    """With "auto" train() continues from the newest good checkpoint in output_dir if there is one, so that running the
    same command again resumes; unset starts anew."""

    take_over: bool = False
    """Train in output_dir although another training writes there: that one is ended, without a save. Without it this
    one is refused, after a wait of ten seconds for the other to end."""

    exact: str = "warn"
    """What to do where a resume cannot be exact, such as with a sampler that asks the clock: "warn" at the start of the
    run, or "require", which refuses to start."""

    checkpoint_format: str = field(default_factory=_default_format)
    """Either "trainwright", or "hf" to write optimizer.pt, scheduler.pt, rng_state.pth and so on beside our files; the
    environment variable TRAINWRIGHT_CHECKPOINT_FORMAT sets the default."""

    save_in_background: bool = True
    """Write checkpoints while training goes on; false waits for each."""

    handle_signals: bool = True
    """Save and stop on SIGTERM, SIGINT, SIGUSR1 and SIGHUP (not under nohup); before the first step, only stop."""

    preempted_exit_code: int = 75
    """Exit code of a process that saved and stopped because of a signal or max_hours."""

    max_hours: float | None = None
    """Save and stop after this much time in this process, as on preemption."""

    preemption_deadline: float = 20.0
    """Seconds after a signal before the last finished step is saved even though the next is still running."""

    rescue_on: list[str] | None = None
    """What saves even where checkpoints are off, before it ends the run: "interrupt", "out_of_memory", "error"."""

    max_nonfinite_steps: int | None = 10
    """Stop after this many steps in a row whose loss or gradient was not finite; such steps never change the weights.
    None never stops."""

    rewind_on_nonfinite: bool = False
    """Instead of stopping go back to the last good checkpoint and leave out the batches that failed."""

    watchdog_seconds: float | None = 120.0
    """Longest silence before all stacks are written to the run directory; ten times the median step if that is more.
    None or 0 switches it off."""

    check_weights_every: int | None = None
    """With several processes that each have a copy of the model: compare the weights to the last bit every so many
    steps, and end the run where they differ."""

    watchdog_exit: bool = False
    """Also end the process when the watchdog finds it stuck, so that a launcher restarts it; the last finished step is
    saved first, if that is possible, and worker processes are ended."""
