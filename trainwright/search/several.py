"""A trial in several processes: torchrun starts them, and the first of them speaks to the study."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from trainwright.config.backends import rank_from_environment
from trainwright.config.errors import ConfigError
from trainwright.config.secrets import holds_mask, redacted_values
from trainwright.core.errors import Preempted
from trainwright.core.files import replace_text
from trainwright.core.json_files import read_json
from trainwright.launch.torchrun import launch, torchrun_command
from trainwright.search.study import Ending, import_optuna, open_study
from trainwright.search.trial import Job, run_trial, stored_ending
from trainwright.search.worker import plan_from

_JOB = "job.json"
#: Codes of processes that were asked to stop, and have saved: 75, or 130 for Ctrl-C.
_STOPPED = (75, 130)


def refuse_secrets(description: dict[str, Any]) -> None:
    """The processes of a trial read from a file what to do."""
    if holds_mask(redacted_values(description)):
        raise ConfigError(
            "With several processes a trial's settings go through a file, and secrets are never written: give them by "
            "environment variables, or leave --processes out."
        )


def train_in_processes(description: dict[str, Any], folder: Path, number: int, chosen: dict[str, Any]) -> Ending:
    """Train one trial in ``description["processes"]`` processes."""
    folder.mkdir(parents=True, exist_ok=True)
    job = {**description, "number": number, "chosen": chosen}
    replace_text(folder / _JOB, json.dumps(job, indent=2) + "\n", forced=True)
    words = ["-m", "trainwright.search.several", str((folder / _JOB).absolute())]
    threads = {"OMP_NUM_THREADS": str(max(1, description["threads"] // description["processes"]))}
    code = launch(torchrun_command(words, processes=description["processes"]), environment=threads)
    if (ended := stored_ending(folder)) is not None:
        return ended
    if code in _STOPPED:
        raise Preempted("a signal", code)
    return Ending("failed", reason=f"its processes ended with code {code}")


def main(file: str) -> None:
    """One of the processes."""
    job = read_json(Path(file))
    plan = plan_from(job)
    trial = None
    if rank_from_environment().rank == 0:
        study = open_study(plan)
        found = study.get_trials(deepcopy=False)[job["number"]]
        trial = import_optuna().trial.Trial(study, found._trial_id)
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    run_trial(Job(plan, job["number"], job["chosen"], threads, trial))


if __name__ == "__main__":
    main(sys.argv[1])
