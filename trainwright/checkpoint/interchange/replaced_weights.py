"""A checkpoint of ours whose ``model.safetensors`` somebody replaced: by shards, or by transformers' older ``.bin``.

Everything else in it is still what the manifest says, so a run can go on from it; only whether these are the weights
that were saved, nobody can tell any more.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from trainwright.checkpoint.identity import RunIdentity
from trainwright.checkpoint.interchange.from_transformers import check_header, converted_weights, shard_names
from trainwright.checkpoint.interchange.importing import tensor_chunks, write_at_once
from trainwright.checkpoint.manifest import DamagedCheckpoint, problems_of, read_manifest
from trainwright.checkpoint.saver import SaveJob
from trainwright.checkpoint.weights import INDEX, WEIGHTS

_BINS = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def replacement_of_weights(folder: Path) -> str | None:
    """The file that stands in place of a checkpoint's ``model.safetensors``; None where that is there, or nothing."""
    try:
        listed = read_manifest(folder)["files"]
    except ValueError:
        return None
    if WEIGHTS not in listed or (folder / WEIGHTS).exists():
        return None
    return next((name for name in (INDEX, *_BINS) if name not in listed and (folder / name).is_file()), None)


def write_with_replaced_weights(folder: Path, target: Path) -> None:
    """Write the checkpoint ``folder`` with the weights that are in it now; refused if anything else is not as it was.

    A ``.bin`` is read with ``weights_only=True``.
    """
    missing = f"{WEIGHTS} is missing"
    if others := [reason for reason in problems_of(folder) if reason != missing]:
        raise DamagedCheckpoint(folder, others)
    manifest = read_manifest(folder)
    copied = [name for name in manifest["files"] if name != WEIGHTS]
    weights = {} if (folder / INDEX).is_file() else converted_weights(folder)
    if not weights:
        shards = shard_names(folder / INDEX)
        for name in shards:
            check_header(folder / name)
        copied += [INDEX, *shards]

    def copy(staging: Path) -> None:
        for name in copied:
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, staging / name)

    sizes = [(folder / name).stat().st_size for name in copied]
    job = SaveJob(
        target=target,
        step=manifest["step"],
        fill=copy,
        tensors={name: tensor_chunks(parts) for name, parts in weights.items()},
        size=sum(sizes) + sum(t.nbytes for parts in weights.values() for t in parts.values()),
        run=RunIdentity.read(manifest.get("run")),
    )
    write_at_once(job)
