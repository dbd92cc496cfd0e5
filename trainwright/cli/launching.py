"""The command that starts a training in several processes: here, with Slurm, or with Ray."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from trainwright.cli.app import ONLY_INSTALLED_MODULES, app, program
from trainwright.cli.experiments import outcome
from trainwright.config.errors import ConfigError
from trainwright.config.secrets import masked_command
from trainwright.launch.ray_train import ray_command
from trainwright.launch.slurm import SlurmJob, sbatch_script, submit
from trainwright.launch.target import process_count, python_words
from trainwright.launch.torchrun import launch as run_command
from trainwright.launch.torchrun import torchrun_command


class Where(StrEnum):
    """Who starts the processes."""

    here = "here"
    slurm = "slurm"
    ray = "ray"


class _Launch(TyperCommand):
    """Options may stand behind an experiment; what stands behind a script is the script's, as with python."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        file = self.make_parser(ctx).parse_args(args=list(args))[0].get("file")
        ctx.allow_interspersed_args = not str(file).endswith(".py")
        return super().parse_args(ctx, args)


_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
_SLURM, _RAY, _NODES = "Slurm", "Ray", "Several machines"


File = Annotated[
    Path,
    typer.Argument(
        help="An experiment.yaml, the folder of a run or a Python script; its own words follow.", exists=True
    ),
]
Processes = Annotated[str, typer.Option("--nproc", "-N", help="Processes on each machine, or auto: one on each GPU.")]
Restarts = Annotated[int, typer.Option(min=0, help="How often to start all processes again after one has died.")]
Nodes = Annotated[str, typer.Option("--nnodes", help="Machines: N, or MIN:MAX.", rich_help_panel=_NODES)]
NodeRank = Annotated[
    int | None, typer.Option(min=0, help="Number of this machine; 0 is the one of --rdzv.", rich_help_panel=_NODES)
]
Meeting = Annotated[str | None, typer.Option(help="HOST:PORT of the first machine.", rich_help_panel=_NODES)]
MeetingId = Annotated[str | None, typer.Option(help="The same on all machines of a run.", rich_help_panel=_NODES)]
Time = Annotated[str | None, typer.Option(help="Time limit, D-HH:MM:SS.", rich_help_panel=_SLURM)]
Partition = Annotated[str | None, typer.Option(help="Partition.", rich_help_panel=_SLURM)]
Account = Annotated[str | None, typer.Option(help="Account.", rich_help_panel=_SLURM)]
Directives = Annotated[
    list[str] | None, typer.Option(help="A further directive, such as mem=64G.", rich_help_panel=_SLURM)
]
Grace = Annotated[
    int | None,
    typer.Option(min=10, help="Seconds before the time limit to save at.", show_default="120", rich_help_panel=_SLURM),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Write the script and do not submit it.", rich_help_panel=_SLURM)
]
RayAddress = Annotated[
    str | None, typer.Option(help="A running cluster; without it Ray starts here.", rich_help_panel=_RAY)
]


@app.command(cls=_Launch, context_settings=_SETTINGS)
def launch(
    context: typer.Context,
    file: File,
    processes: Processes = "1",
    cpu: Annotated[bool, typer.Option("--cpu", help="Hide the GPUs.")] = False,
    max_restarts: Restarts = 0,
    nodes: Nodes = "1",
    node_rank: NodeRank = None,
    rdzv: Meeting = None,
    rdzv_id: MeetingId = None,
    where: Annotated[Where, typer.Option("--on", help="here (torchrun), slurm or ray.")] = Where.here,
    time: Time = None,
    partition: Partition = None,
    account: Account = None,
    sbatch: Directives = None,
    grace: Grace = None,
    dry_run: DryRun = False,
    ray_address: RayAddress = None,
) -> None:
    """Run an experiment or a script in several processes; the exit code is that of the processes."""
    slurm = {"--time": time, "--partition": partition, "--account": account, "--sbatch": sbatch or None}
    slurm |= {"--grace": grace, "--dry-run": dry_run or None}
    meeting = {"--node-rank": node_rank, "--rdzv": rdzv, "--rdzv-id": rdzv_id}
    with outcome():
        _refuse_what_does_not_fit(where, slurm, meeting, nodes, ray_address)
        if where is Where.slurm:
            _write_slurm_job(file, context.args, processes, nodes, cpu, max_restarts, slurm)
            return

        words, count = python_words(file, context.args), process_count(processes, cpu=cpu)
        if where is Where.ray:
            command = ray_command(words, workers=count, cpu=cpu, max_restarts=max_restarts, address=ray_address)
        else:
            command = _command_here(words, count, nodes, meeting, max_restarts)
        code = run_command(command, environment=_environment(file, cpu))
    raise typer.Exit(code)


def _command_here(words: list[str], count: int, nodes: str, meeting: dict[str, Any], max_restarts: int) -> list[str]:
    needs_nobody = nodes == "1" and max_restarts == 0 and all(value is None for value in meeting.values())
    if count == 1 and needs_nobody:
        return [sys.executable, *words]
    return torchrun_command(
        words,
        processes=count,
        nodes=nodes,
        node_rank=meeting["--node-rank"],
        rendezvous=meeting["--rdzv"],
        rendezvous_id=meeting["--rdzv-id"],
        max_restarts=max_restarts,
    )


def _environment(file: Path, cpu: bool) -> dict[str, str]:
    found = {"TRAINWRIGHT_LAUNCHED_BY": shlex.join(masked_command([*program(), *sys.argv[1:]]))}
    if file.suffix != ".py":
        found |= ONLY_INSTALLED_MODULES
    if cpu:
        found["CUDA_VISIBLE_DEVICES"] = ""
    return found


def _refuse_what_does_not_fit(
    where: Where, slurm: dict[str, Any], meeting: dict[str, Any], nodes: str, ray_address: str | None
) -> None:
    """Each option acts or is refused."""
    for name, value in slurm.items():
        if value is not None and where is not Where.slurm:
            raise ConfigError(f"{name} is for --on slurm: add that, or leave it out.")
    if ray_address is not None and where is not Where.ray:
        raise ConfigError("--ray-address is for --on ray: add that, or leave it out.")
    for name, value in meeting.items():
        if value is not None and where is not Where.here:
            raise ConfigError(f"{name} is not for --on {where}: the machines find each other there. Leave it out.")
    if nodes != "1" and where is Where.ray:
        raise ConfigError("--nnodes is not for --on ray: --nproc is the number of workers on the whole cluster.")


def _write_slurm_job(
    file: Path, words: list[str], processes: str, nodes: str, cpu: bool, max_restarts: int, options: dict[str, Any]
) -> None:
    if not processes.isdecimal() or int(processes) < 1:
        raise ConfigError(f"--nproc {processes}: with --on slurm give the number of GPUs (or processes) on each node.")
    if not nodes.isdecimal() or int(nodes) < 1:
        raise ConfigError(f"--nnodes {nodes}: with --on slurm give one number.")
    split = [word.removeprefix("--").partition("=") for word in options["--sbatch"] or []]
    job = SlurmJob(
        file,
        words,
        int(processes),
        int(nodes),
        cpu,
        max_restarts,
        options["--time"],
        options["--partition"],
        options["--account"],
        options["--grace"] or 120,
        {name: value for name, _, value in split},
    )
    _refuse_secrets(words)
    script = Path(f"{file.resolve().stem}.sbatch")
    script.write_text(sbatch_script(job), encoding="utf-8")
    typer.echo(f"Wrote {script}.")
    if options["--dry-run"]:
        typer.echo(f"Submit it with: sbatch {shlex.quote(str(script))}")
    else:
        typer.echo(submit(script))


def _refuse_secrets(words: list[str]) -> None:
    """A batch script is a file, and secrets are not written."""
    for word, shown in zip(words, masked_command(words), strict=True):
        if word != shown:
            raise ConfigError(
                f"{shown} looks like a secret, and --on slurm writes the command into a file: hand it over in an "
                "environment variable (sbatch passes yours on), such as HF_TOKEN."
            )
