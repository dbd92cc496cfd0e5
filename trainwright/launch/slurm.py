"""A Slurm job that trains, saves in time when Slurm wants the machines back, and queues itself again to go on."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainwright.config.errors import ConfigError

#: Directives that the script depends on.
_OURS = {
    "nodes": "--nnodes",
    "ntasks-per-node": None,
    "requeue": None,
    "open-mode": None,
    "signal": "--grace",
    "time": "--time",
    "partition": "--partition",
    "account": "--account",
}

_JOB = """\
set -u
# This script only waits: what asks the job to stop is for the steps, which save.
trap : TERM USR1
{settings}code=0
srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 \\
  {command} || code=$?
if [ "$code" -eq {preempted} ]; then
  echo "Stopped and saved; job $SLURM_JOB_ID is queued again." >&2
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""

#: Each node's own number is only known to what srun starts there.
_ON_EACH_NODE = 'exec "$0" -P -m trainwright launch --node-rank "$SLURM_NODEID" "$@"'

_SEVERAL_NODES = """\
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 20000))
"""


@dataclass(frozen=True)
class SlurmJob:
    """What is asked of Slurm, and what runs there."""

    file: Path
    words: Sequence[str] = ()
    processes: int = 1
    nodes: int = 1
    cpu: bool = False
    max_restarts: int = 0
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    #: Seconds before the time limit at which the run is asked to save.
    grace: int = 120
    #: Further directives, such as {"mem": "64G"}; an empty value stands for a directive without one.
    directives: Mapping[str, str] = field(default_factory=dict)
    preempted: int = 75


def sbatch_script(job: SlurmJob) -> str:
    """The text of the script.

    >>> print(sbatch_script(SlurmJob(Path("/data/my runs/a.yaml"), processes=8, time="1-00:00:00")).split("set -u")[0])
    #!/bin/bash
    #SBATCH --job-name=a
    #SBATCH --nodes=1
    #SBATCH --ntasks-per-node=1
    #SBATCH --gpus-per-node=8
    #SBATCH --time=1-00:00:00
    #SBATCH --requeue
    #SBATCH --open-mode=append
    #SBATCH --signal=USR1@120
    <BLANKLINE>
    """
    lines = [f"#SBATCH --{name}={value}" if value else f"#SBATCH --{name}" for name, value in _directives(job).items()]
    body = _JOB.format(settings=_SEVERAL_NODES if job.nodes > 1 else "", command=_command(job), preempted=job.preempted)
    return "\n".join(["#!/bin/bash", *lines, body])


def _directives(job: SlurmJob) -> dict[str, str]:
    taken = [name for name in job.directives if name in _OURS]
    if taken:
        option = _OURS[taken[0]]
        raise ConfigError(
            f"--sbatch {taken[0]}={job.directives[taken[0]]}: "
            + (f"use {option}." if option else "the script depends on its own value.")
        )
    wanted = {
        "job-name": re.sub(r"[^\w.-]", "_", job.file.resolve().stem),
        "nodes": str(job.nodes),
        "ntasks-per-node": "1",
        "cpus-per-task" if job.cpu else "gpus-per-node": str(job.processes),
        "time": job.time,
        "partition": job.partition,
        "account": job.account,
        "requeue": "",
        "open-mode": "append",
        "signal": f"USR1@{job.grace}",
        **job.directives,
    }
    found = {name: value for name, value in wanted.items() if value is not None}
    for name, value in found.items():
        # sbatch splits these lines at blanks and knows no way to say more.
        if not re.fullmatch(r"[a-z][a-z-]*", name) or not re.fullmatch(r"[^\s\"'#\\]*", value):
            raise ConfigError(
                f"--sbatch {name}={value}: a name in small letters, and a value without blanks or quotes."
            )
    return found


def _command(job: SlurmJob) -> str:
    options = ["--nproc", str(job.processes), *(["--cpu"] if job.cpu else [])]
    options += ["--max-restarts", str(job.max_restarts)] if job.max_restarts else []
    target = shlex.join([str(job.file.resolve()), *job.words])
    python = shlex.quote(sys.executable)
    if job.nodes == 1:
        return f"{python} -P -m trainwright launch {shlex.join(options)} {target}"
    meeting = '--nnodes "$SLURM_NNODES" --rdzv "$first:$port" --rdzv-id "$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"'
    return f"bash -c {shlex.quote(_ON_EACH_NODE)} {python} {shlex.join(options)} {meeting} {target}"


def submit(script: Path) -> str:
    """Hand the script to Slurm where this machine has it; returns what to tell the user.

    >>> import os; before = os.environ["PATH"]; os.environ["PATH"] = ""
    >>> submit(Path("a b.sbatch"))
    "There is no sbatch on this machine. Where there is: sbatch 'a b.sbatch'"
    >>> os.environ["PATH"] = before
    """
    found = shutil.which("sbatch")
    if found is None:
        return f"There is no sbatch on this machine. Where there is: sbatch {shlex.quote(str(script))}"
    done = subprocess.run([found, str(script)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ConfigError(f"sbatch refused {script}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()
