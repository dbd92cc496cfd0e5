"""A foreign checkpoint as one of ours: safetensors, JSON and a manifest, written like any other checkpoint."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from trainwright.checkpoint.durable import Chunk
from trainwright.checkpoint.interchange.foreign import Foreign
from trainwright.checkpoint.interchange.from_lightning import read_lightning
from trainwright.checkpoint.interchange.from_transformers import read_transformers
from trainwright.checkpoint.interchange.reading import UnreadableCheckpoint
from trainwright.checkpoint.manifest import has_manifest
from trainwright.checkpoint.optimizer_state import flatten_optimizer
from trainwright.checkpoint.pack import file_chunks
from trainwright.checkpoint.saver import SaveJob, Saver
from trainwright.checkpoint.training_state import OPTIMIZER, RANDOM, TRAINING, only_json
from trainwright.core.events import RunEvents


class Imported(NamedTuple):
    """What an import made."""

    folder: Path
    library: str
    step: int
    #: What the user should know, each a phrase.
    notes: list[str]


def import_checkpoint(
    path: str | Path, output: str | Path | None = None, *, strip_prefix: str | None = None
) -> Imported:
    """Read a transformers ``checkpoint-N`` folder or a Lightning ``.ckpt`` file and write a checkpoint to resume from.

    The original is left as it is; ``output`` must not be there yet. By default it is ``imported/checkpoint-N`` beside
    the original. Raises ``ValueError`` for what cannot be read safely or is not complete.
    """
    source = Path(path)
    if source.is_dir() and has_manifest(source):
        raise UnreadableCheckpoint(f"{source} is a checkpoint of trainwright already: resume from it as it is.")
    if strip_prefix and source.is_dir():
        raise ValueError("--strip-prefix is for Lightning's .ckpt files; transformers keeps the model's own names.")
    if output is not None:
        refuse_to_overwrite(Path(output))
    foreign = read_transformers(source) if source.is_dir() else read_lightning(source, strip_prefix)
    step = foreign.state.global_step
    target = Path(output) if output is not None else source.parent / "imported" / f"checkpoint-{step}"
    refuse_to_overwrite(target)
    notes = [*foreign.notes, *_adjust_best_model(foreign, source, target)]
    _write(foreign, target)
    return Imported(target, foreign.library, step, notes)


def refuse_to_overwrite(target: Path) -> None:
    """Raise if something is at ``target``: it may be what the caller wants to keep."""
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise FileExistsError(f"{target} is there already: delete it, or choose another place with --output.")


def _adjust_best_model(foreign: Foreign, source: Path, target: Path) -> list[str]:
    best = foreign.state.best_model_checkpoint
    if best is None:
        return []
    if Path(best).name == source.name:
        foreign.state.best_model_checkpoint = str(target)
        return []
    return [f"the best model so far is in {best}, which is not imported: load_best_model_at_end cannot go back to it"]


def _write(foreign: Foreign, target: Path) -> None:
    numbers = [str(number) for group in foreign.optimizer["param_groups"] for number in group["params"]]
    by_number = [str(number) for number in range(len(numbers))]
    tensors, optimizer = flatten_optimizer(foreign.optimizer, by_number)
    files = {**foreign.weights, OPTIMIZER: tensors, RANDOM: foreign.random[0] if foreign.random else {}}
    state = dataclasses.replace(foreign.state, log_history=list(foreign.state.log_history))
    job = SaveJob(
        target=target,
        step=foreign.state.global_step,
        fill=lambda staging: _copy(foreign.copies, staging),
        tensors={name: tensor_chunks(parts) for name, parts in files.items()},
        texts={TRAINING: lambda: _training_text(foreign, optimizer), "trainer_state.json": state.to_json},
        size=sum(t.nbytes for parts in files.values() for t in parts.values()) + _bytes_of(foreign.copies),
    )
    write_at_once(job)


def write_at_once(job: SaveJob) -> None:
    """Write a checkpoint like any other, and wait for it; raises where it cannot be written."""
    events = RunEvents()
    saver = Saver(events)
    saver.save(job, background=False)
    if saver.last_saved != job.target:
        raise OSError(events.recorded[-1]["message"] if events.recorded else f"{job.target} could not be written.")


def _training_text(foreign: Foreign, optimizer: dict[str, Any]) -> str:
    contents = {
        "optimizer": {**optimizer, "numbering": foreign.library},
        "scheduler": foreign.scheduler,
        "scaler": foreign.scaler,
        "random": foreign.random[1] if foreign.random else None,
        "data": {"steps": foreign.state.global_step},
        "callbacks": {},
        "loss": {"sum": None, "finite": None, "steps": 0, "total": 0.0, "total_steps": 0},
        "last_step": {"grad_norm": None, "learning_rate": None},
        "imported_from": foreign.library,
    }
    return json.dumps(only_json(contents), indent=2, sort_keys=True) + "\n"


def tensor_chunks(tensors: dict[str, Tensor]) -> Callable[[], list[Chunk]]:
    """Tensors of one file, as a :class:`SaveJob` takes them."""
    return lambda: file_chunks(tensors)


def _copy(paths: list[Path], staging: Path) -> None:
    for path in paths:
        shutil.copyfile(path, staging / path.name)


def _bytes_of(paths: list[Path]) -> int:
    return sum(path.stat().st_size for path in paths)
