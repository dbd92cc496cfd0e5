"""Rows about several processes: real ones, forked from this one, that exchange gradients over gloo."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from trainwright.core.children import end_with_parent
from trainwright.proving import causes
from trainwright.proving.copies import nothing_said
from trainwright.proving.record import Record
from trainwright.proving.refusals import first_line, is_refusal
from trainwright.proving.result import OVER, Row
from trainwright.proving.stage import Stage, Way
from trainwright.proving.steps import Attempt, compared, not_tried
from trainwright.training.hooks import is_ours

PROCESSES = 2
#: The exchange of losses is in single precision.
_LOSS_SHARE = 1e-6
#: What starting processes takes besides a training.
_START_SECONDS = 4.0


@dataclass(frozen=True)
class _Spread:
    """How a model is spread over processes."""

    name: str
    settings: dict[str, Any]
    #: Batches of each update, which the processes share.
    pieces: int = PROCESSES


_SPREADS = (
    _Spread("ddp", {}),
    _Spread("fsdp", {"backend": "fsdp"}),
    _Spread("tp", {"backend": "fsdp", "tensor_parallel_size": PROCESSES}, pieces=1),
)


@dataclass(frozen=True)
class _Failed:
    """Why processes gave no record."""

    text: str
    is_refusal: bool = False


def process_rows(stage: Stage, end: float, *, draws: str | None) -> list[Attempt]:
    """One row for each way to spread a model; ``end`` is when the budget is used up."""
    why = _why_not(stage) or draws
    if why is None and min(stage.material.rows) < PROCESSES:
        why = "an update has one sample only, which cannot be shared"
    found = []
    for spread in _SPREADS:
        name = f"{PROCESSES} processes ({spread.name})"
        run = partial(_row, stage, name, spread, end) if why is None else partial(not_tried, name, why)
        found.append(Attempt(name, run, trainings=8.0, more_seconds=_START_SECONDS))
    return found


def _why_not(stage: Stage) -> str | None:
    if not is_ours(stage.source.backend):
        return "the Trainer was given a backend of its own"
    if not hasattr(os, "fork") or sys.platform == "darwin":
        return "processes cannot be forked here"
    if stage.source.args.device.type != "cpu" or torch.cuda.is_initialized():
        return "this process uses a GPU, so none can be forked from it; prove it with use_cpu=True"
    if multiprocessing.current_process().daemon:
        return "this process was started by another one that lets it start none"
    if dist.is_initialized():
        return "this process is in a group of processes already"
    return None


def _row(stage: Stage, name: str, spread: _Spread, end: float) -> Row:
    # Known before the processes are there: they need not find it out again.
    stage.reference(), stage.allowed()
    way = Way(spread.settings, pieces=spread.pieces)
    # Read here: after a fork both would move the same file.
    stage.material.batches(way.pieces)
    start = time.perf_counter()
    found = _in_processes(stage, way, stage.folder / spread.name, end)
    if isinstance(found, _Failed):
        if found.is_refusal:
            return not_tried(name, found.text)
        return Row(name, "fail", found.text, seconds=time.perf_counter() - start)
    return compared(stage, name, way, partial(_why_differs, stage), found=found, loss_share=_LOSS_SHARE)


def _why_differs(stage: Stage, found: Record, expected: Record) -> str:
    factor = causes.factor_of(found, expected)
    if factor is not None:
        return causes.said_of_factor(factor, "the number of processes")
    pieces = Way({"micro_batch": -(-max(stage.material.rows) // PROCESSES)})
    return causes.said_of_samples(stage, pieces, PROCESSES)


def _in_processes(stage: Stage, way: Way, folder: Path, end: float) -> Record | _Failed:
    """What the first of the processes recorded that train together."""
    folder.mkdir()
    context = multiprocessing.get_context("fork")
    children = [
        context.Process(target=_child, args=(stage, way, rank, folder), daemon=True) for rank in range(PROCESSES)
    ]
    try:
        for child in children:
            child.start()
        in_time = _all_ended(children, folder, end)
        # Whoever has lost another fails a moment before that one is known to be gone.
        for child in children:
            child.join(1.0 if in_time else 0.0)
        died = [number for number, child in enumerate(children) if _has_died(child, folder / f"error-{number}.json")]
    finally:
        for child in children:
            if child.is_alive():
                child.kill()
            child.join()
    if died:
        code = children[died[0]].exitcode
        return _Failed(f"process {died[0]} ended without a word (exit code {code})")
    failed = [_Failed(**json.loads(path.read_text())) for path in sorted(folder.glob("error-*.json"))]
    if failed:
        return next((one for one in failed if one.is_refusal), failed[0])
    return _read(folder) if in_time else _Failed(OVER, is_refusal=True)


def _has_died(child: Any, error: Path) -> bool:
    return child.exitcode not in (None, 0) and not error.exists()


def _all_ended(children: Sequence[Any], folder: Path, end: float) -> bool:
    """Wait until all have ended, or one has failed; False where the time is over first."""
    while any(child.is_alive() for child in children):
        if any(child.exitcode for child in children) or list(folder.glob("error-*.json")):
            return True
        if time.perf_counter() > end:
            return False
        children[0].join(0.02)
    return True


def _child(stage: Stage, way: Way, rank: int, folder: Path) -> None:
    end_with_parent(signal.SIGKILL)
    # What it prints is nobody's business; what it fails with is written down.
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    # A pool of threads does not survive a fork.
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(PROCESSES)}
    if sys.platform.startswith("linux"):
        # Nobody else on the network is asked.
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        store = dist.FileStore(str(folder / "store"), PROCESSES)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=PROCESSES, timeout=timedelta(seconds=60))
        shared = way.pieces > 1
        with nothing_said():
            record = stage.train(replace(way, process=(rank, PROCESSES) if shared else (0, 1)))
        if rank == 0:
            _write(record, folder)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException as error:
        refused = is_refusal(error)
        failed = _Failed(first_line(error) if refused else f"it raises {first_line(error)}", refused)
        partly = folder / f"error-{rank}.part"
        partly.write_text(json.dumps(asdict(failed)))
        partly.rename(folder / f"error-{rank}.json")
        os._exit(1)
    os._exit(0)


def _write(record: Record, folder: Path) -> None:
    tensors = {f"weights/{name}": tensor for name, tensor in record.weights.items()}
    for step, gradients in enumerate(record.gradients):
        tensors |= {f"gradients/{step}/{name}": tensor for name, tensor in gradients.items()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(folder / "record.safetensors"))
    (folder / "record.json").write_text(json.dumps({"losses": record.losses, "steps": len(record.gradients)}))


def _read(folder: Path) -> Record:
    tensors = load_file(str(folder / "record.safetensors"))
    told = json.loads((folder / "record.json").read_text())

    def below(place: str) -> dict[str, torch.Tensor]:
        return {name.removeprefix(place): tensor for name, tensor in tensors.items() if name.startswith(place)}

    gradients = [below(f"gradients/{step}/") for step in range(told["steps"])]
    return Record(told["losses"], gradients, weights=below("weights/"))
