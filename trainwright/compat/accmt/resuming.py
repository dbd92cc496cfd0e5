"""Which checkpoint a training goes on from, and its seed."""

from __future__ import annotations

from pathlib import Path

import torch

from trainwright.checkpoint.directory import list_checkpoints, newest_good
from trainwright.checkpoint.manifest import verify
from trainwright.compat.accmt.hyperparameters import read_config
from trainwright.compat.accmt.this_process import ThisProcess


def wanted_checkpoint(folder: Path, resume: bool | int | None) -> str | None:
    """What to resume from: the newest good one, or with a number the one at that place; True needs a checkpoint."""
    if resume is False:
        return None
    if resume is not None and resume is not True:
        return str(_numbered(folder, resume))
    found = newest_good(folder)
    if found is not None:
        return str(found)
    if list_checkpoints(folder):
        raise ValueError(f"Every checkpoint in {folder} is damaged; `trainwright verify {folder}` says how.")
    if resume:
        raise FileNotFoundError(f"resume=True, and {folder} holds no checkpoint: pass resume=None to begin anew then.")
    return None


def _numbered(folder: Path, number: int) -> Path:
    """The checkpoint at that place in the row, the first being 1."""
    known = list_checkpoints(folder)
    if number > len(known):
        names = ", ".join(path.name for path in known) or "none"
        raise FileNotFoundError(f"resume={number}: {folder} holds {len(known)} checkpoints: {names}.")
    verify(known[number - 1])
    return known[number - 1]


def seed_of(checkpoint: str | None) -> int:
    """The seed that the script has set, or what torch drew for the first process; a resumed run has its own.

    ACCMT has no argument for it, so a resumed run cannot ask for another.
    """
    if checkpoint is not None:
        saved = read_config(Path(checkpoint) / "config.yaml").get("seed")
        if isinstance(saved, int):
            return saved
    seed = torch.initial_seed() % 2**31
    # Where none was set, torch has drawn another in every process, which would shuffle the data in another way.
    return ThisProcess().gather_for_metrics([seed], use_gather_object=True)[0]
