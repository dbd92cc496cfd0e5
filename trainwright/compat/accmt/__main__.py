"""``python -m trainwright.compat.accmt``: ACCMT's command line.

launch [-n 0,1 | -n all] [-N 2] [--cpu] [--strat NAME] file args...  run a script in several processes
alaunch -n 0,1 -e 2 ... file args...                                 the same, with evaluations on other GPUs
debug [--level 3] ... file args...                                   without the traces of a training; adebug too
debug-levels                                                        what --level may be
example                                                             write hps_example.yaml
get CHECKPOINT --out FOLDER [--dtype bfloat16]                       the model of a checkpoint
strats [--ddp] [--fsdp] [--deepspeed]                               what --strat may be
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from trainwright.checkpoint.directory import newest_good
from trainwright.checkpoint.manifest import verify
from trainwright.compat.accmt.converting import convert_model, floating_type
from trainwright.compat.accmt.debugging import LEVELS, VARIABLE_OF_TIMINGS
from trainwright.compat.accmt.debugging import VARIABLE as VARIABLE_OF_LEVEL
from trainwright.compat.accmt.strategies import VARIABLE, WAYS, names, settings_of
from trainwright.launch.torchrun import launch, torchrun_command

#: Files of a checkpoint that are the model's.
_NOT_THE_MODEL = (
    "optimizer",
    "random",
    "callbacks",
    "training_state",
    "trainer_state",
    "log.json",
    "manifest",
    "config.yaml",
    "config.history",
)
FAMILIES = ("ddp", "fsdp", "deepspeed")
EXAMPLE = """\
hps:
  epochs: 2
  batch_size: [16, 32]      # training, validation; of each process
  optim:
    type: AdamW
    lr: 1e-3
  scheduler:
    type: OneCycleLR
    max_lr: 1e-3
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    given = _parser().parse_args(arguments)
    try:
        code = given.run(given)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read it has seen enough; Python would complain of the rest as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        print(f"accmt {given.command}: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainwright.compat.accmt", description="ACCMT's command line.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, says in (("launch", "run a script in several processes"), ("debug", "run it without leaving traces")):
        _add_launch(commands.add_parser(name, help=says), debugs=name == "debug")
    for name in ("alaunch", "async-launch", "adebug", "async-debug"):
        says = f"{'debug' if name.endswith('debug') else 'launch'}, with evaluations on other GPUs"
        _add_launch(commands.add_parser(name, help=says), debugs=name.endswith("debug"), evaluates_elsewhere=True)
    levels = commands.add_parser("debug-levels", help="what debug --level may be")
    levels.add_argument("--level", "-L", "-l", type=int, choices=list(LEVELS), help="one of them")
    levels.set_defaults(run=_levels)
    example = commands.add_parser("example", help="write hps_example.yaml")
    example.set_defaults(run=_example)
    get = commands.add_parser("get", help="the model of a checkpoint")
    get.add_argument("checkpoint", help="a checkpoint-N folder, or the folder that holds them")
    get.add_argument("--out", "-O", "-o", required=True, help="where the model goes")
    get.add_argument("--dtype", help="float32, bfloat16, ...: what the weights become; as they are, if left out")
    get.set_defaults(run=_get)
    strats = commands.add_parser("strats", help="what --strat may be")
    for way in FAMILIES:
        strats.add_argument(f"--{way}", action="store_true", help=f"only those of {way}")
    strats.set_defaults(run=_strats)
    return parser


def _add_launch(start: argparse.ArgumentParser, *, debugs: bool, evaluates_elsewhere: bool = False) -> None:
    start.add_argument("-n", "--gpus", help="GPUs to use, such as 0,1; all; available")
    start.add_argument("-N", "--number", help="how many processes, or a range of GPUs such as 2:4")
    start.add_argument("--cpu", action="store_true", help="use no GPU")
    start.add_argument("--strat", default="ddp", help="how the training is spread; strats lists the names")
    start.add_argument("--debug-timings", action="store_true", help="print how long the parts of each step take")
    if evaluates_elsewhere:
        indices = "GPUs that evaluate, such as 2,3; with --cpu as many processes as there are numbers"
        start.add_argument("-e", "--evaluation-device-indices", help=indices)
    if debugs:
        start.add_argument("--level", "-L", "-l", type=int, default=3, choices=list(LEVELS), help="see debug-levels")
    else:
        start.set_defaults(level=None)
    start.add_argument("file", help="the script")
    start.add_argument("script_arguments", nargs=argparse.REMAINDER)
    start.set_defaults(run=_launch_both if evaluates_elsewhere else _launch)


def _launch(given: argparse.Namespace) -> int:
    environment = _environment(given)
    devices = [] if given.cpu else _devices(given)
    processes = _count(given.number) if given.cpu else len(devices)
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    return launch(_command(given, processes), environment=environment)


def _launch_both(given: argparse.Namespace) -> int:
    """Two groups: one trains, the other evaluates."""
    from trainwright.compat.accmt.asynchronous.groups import EVALUATION, TRAINING
    from trainwright.compat.accmt.asynchronous.launching import launch_groups

    environment = _environment(given)
    if settings_of(given.strat)["backend"].partition("-")[0] != "ddp":
        raise ValueError(
            f"--strat {given.strat}: with evaluations elsewhere every process has the whole model; use ddp."
        )
    wanted = given.evaluation_device_indices
    if given.cpu:
        devices: dict[str, list[str]] = {TRAINING: [], EVALUATION: []}
        count = {TRAINING: _count(given.number), EVALUATION: len((wanted or "0").strip(",").split(","))}
    else:
        if not wanted or (not given.gpus and not given.number):
            raise ValueError("say which GPUs train and which evaluate: -n 0,1 -e 2 (or --cpu).")
        evaluating = argparse.Namespace(gpus=wanted.strip(","), number=None)
        devices = {TRAINING: _devices(given), EVALUATION: _devices(evaluating)}
        count = {group: len(found) for group, found in devices.items()}
    environments = {
        group: {**environment, "CUDA_VISIBLE_DEVICES": ",".join(devices[group])} for group in (TRAINING, EVALUATION)
    }
    return launch_groups({group: _command(given, number) for group, number in count.items()}, environments)


def _environment(given: argparse.Namespace) -> dict[str, str]:
    """What all processes are told."""
    if given.strat.endswith((".yaml", ".yml")):
        raise ValueError(
            f"--strat {given.strat}: accelerate's files are not read; name one of {', '.join(WAYS)}, or give the "
            "Trainer's arguments."
        )
    spread = settings_of(given.strat)
    if not Path(given.file).is_file():
        raise ValueError(f"there is no file {given.file}.")
    environment = {VARIABLE_OF_TIMINGS: "1"} if given.debug_timings else {}
    if given.level is not None:
        environment[VARIABLE_OF_LEVEL] = str(given.level)
    if spread != {"backend": "ddp"}:
        # Where nothing is said, the number of processes decides.
        environment[VARIABLE] = given.strat
    return environment


def _command(given: argparse.Namespace, processes: int) -> list[str]:
    script = [given.file, *given.script_arguments]
    return [sys.executable, *script] if processes == 1 else torchrun_command(script, processes=processes)


def _devices(given: argparse.Namespace) -> list[str]:
    """Numbers of the GPUs to use, as CUDA_VISIBLE_DEVICES has them."""
    import torch

    present = os.environ.get("CUDA_VISIBLE_DEVICES")
    every = present.split(",") if present else [str(number) for number in range(torch.cuda.device_count())]
    if not every:
        raise ValueError("this machine has no GPU: add --cpu.")
    if given.gpus and given.gpus not in ("all", "available"):
        chosen = given.gpus.split(",")
        unknown = [number for number in chosen if number not in every]
        if unknown:
            raise ValueError(f"-n {given.gpus}: there is no GPU {unknown[0]}; there are {', '.join(every)}.")
        return chosen
    if given.number and ":" in given.number:
        first, _, end = given.number.partition(":")
        return every[int(first or 0) : int(end) if end else None]
    if given.number and given.number != "all":
        count = _count(given.number)
        if count > len(every):
            raise ValueError(f"-N {count}: there are {len(every)} GPUs.")
        return every[:count]
    return every


def _count(text: str | None) -> int:
    if text is None:
        return 1
    if text == "all":
        return os.cpu_count() or 1
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"-N {text}: give a number of processes.")
    return int(text)


def _example(given: argparse.Namespace) -> int:
    target = Path("hps_example.yaml")
    if target.exists():
        raise ValueError(f"{target} is there already.")
    target.write_text(EXAMPLE, encoding="utf-8")
    print(f"Wrote {target}.")
    return 0


def _get(given: argparse.Namespace) -> int:
    folder = Path(given.checkpoint)
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}.")
    checkpoint = newest_good(folder) or folder
    verify(checkpoint)
    target = Path(given.out)
    if target.exists():
        raise ValueError(f"{target} is there already.")
    dtype = None if given.dtype is None else floating_type(given.dtype)
    target.mkdir(parents=True)
    for file in checkpoint.iterdir():
        if file.is_file() and not file.name.startswith(_NOT_THE_MODEL):
            shutil.copy2(file, target / file.name)
    if dtype is not None:
        convert_model(target, dtype)
    print(f"Wrote the model of {checkpoint} to {target}.")
    return 0


def _strats(given: argparse.Namespace) -> int:
    wanted = tuple(way for way in FAMILIES if getattr(given, way)) or FAMILIES
    print("\n".join(name for name in names() if name.startswith(wanted)))
    return 0


def _levels(given: argparse.Namespace) -> int:
    for level in LEVELS if given.level is None else [given.level]:
        print(f"{level}{' (default)' if level == 3 else ''}: {LEVELS[level]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
