"""A training on Ray: one process on each of Ray Train's workers, started again together when one is lost.

``python -m trainwright.launch.ray_train OPTIONS`` is the driver; OPTIONS is the JSON that ``ray_command`` writes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.core.errors import Preempted
from trainwright.core.stops import STOP_FILE
from trainwright.launch.notes import INTERRUPTED, PREEMPTED
from trainwright.launch.worker import run_python

_MISSING = "--on ray needs Ray Train: pip install 'trainwright[ray]'"


def ray_command(
    script: Sequence[str], *, workers: int, cpu: bool = False, max_restarts: int = 0, address: str | None = None
) -> list[str]:
    """The command that runs ``script`` (a file, or ``-m`` and a module, and its arguments) on ``workers`` of Ray.

    Without an ``address`` a Ray of its own is started on this machine, and ended.
    """
    options = {
        "script": list(script),
        "workers": workers,
        "cpu": cpu,
        "max_restarts": max_restarts,
        "address": address,
        "folder": str(Path.cwd()),
    }
    return [sys.executable, "-P", "-m", "trainwright.launch.ray_train", json.dumps(options)]


def work(options: dict[str, Any]) -> int:
    """What each worker does; returns 75 for a run that was stopped and saved, else 0."""
    with suppress(FileNotFoundError):
        # Names of files in experiments and scripts are as where the command was given.
        os.chdir(options["folder"])
    os.environ[STOP_FILE] = options["stop_file"]
    if options["cpu"]:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        run_python(options["script"])
    except Preempted as stop:
        return int(stop.code or 0)
    except SystemExit as end:
        if end.code:
            # The others wait for this one: as an error it ends them too.
            raise RuntimeError(f"The process ended with exit code {end.code}.") from end
    return 0


def drive(options: dict[str, Any]) -> int:
    """Start the workers and wait for them; the exit code."""
    # Set before Ray is imported: nothing is sent to anybody.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    if options["address"] is None:
        # Ray's way to say that nobody else takes part, whatever the system: all its processes listen on 127.0.0.1.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        ray, train, torch = (import_module(name) for name in ("ray", "ray.train", "ray.train.torch"))
    except ImportError as error:
        raise ConfigError(f"{_MISSING} ({error}).") from None
    _start(ray, options)
    storage, name = Path(options["folder"]) / "runs" / "ray", f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    stop_file = storage / f"{name}.stop"
    received = _ask_by_file(stop_file)
    trainer = torch.TorchTrainer(
        work,
        train_loop_config={**options, "stop_file": str(stop_file)},
        scaling_config=train.ScalingConfig(num_workers=options["workers"], use_gpu=_has_gpus(ray, options)),
        run_config=train.RunConfig(
            name=name,
            storage_path=str(storage),
            failure_config=train.FailureConfig(max_failures=options["max_restarts"]),
        ),
    )
    try:
        code = trainer.fit().return_value or 0
    except train.TrainingFailedError as error:
        print(f"The workers failed: {error}", file=sys.stderr)
        return 1
    finally:
        stop_file.unlink(missing_ok=True)
        ray.shutdown()
    return INTERRUPTED if code == PREEMPTED and received == [signal.SIGINT] else code


def _start(ray: Any, options: dict[str, Any]) -> None:
    if options["address"] is not None:
        print("The folder of the run must be on storage that all machines share.", file=sys.stderr)
        ray.init(address=options["address"])
        return
    # The dashboard takes jobs from anyone who can reach it (CVE-2023-48022, CVE-2026-27482).
    ray.init(
        address="local",
        num_cpus=max(options["workers"], os.cpu_count() or 1),
        include_dashboard=False,
        dashboard_host="127.0.0.1",
    )


def _has_gpus(ray: Any, options: dict[str, Any]) -> bool:
    present = int(ray.cluster_resources().get("GPU", 0))
    if options["cpu"] or present == 0:
        return False
    if present < options["workers"]:
        print(f"{options['workers']} workers wait for as many GPUs; Ray has {present} now.", file=sys.stderr)
    return True


def _ask_by_file(path: Path) -> list[int]:
    """Let a signal to the driver stop the workers, whose training runs where Python delivers no signals."""
    received: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if not received:
            received.append(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, ask)
    return received


def main(words: list[str]) -> int:
    """The driver."""
    try:
        return drive(json.loads(words[0]))
    except ConfigError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    # By its name, so that the workers import ``work`` and are not sent its code.
    sys.exit(import_module("trainwright.launch.ray_train").main(sys.argv[1:]))
