"""Find the checkpoint to resume from: the one named, or the newest that verifies."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

from trainwright.checkpoint.directory import all_checkpoints, list_checkpoints, newest_good, put_back, step_of
from trainwright.checkpoint.durable import discard
from trainwright.checkpoint.interchange.importing import import_checkpoint
from trainwright.checkpoint.interchange.replaced_weights import replacement_of_weights, write_with_replaced_weights
from trainwright.checkpoint.manifest import DamagedCheckpoint, has_manifest, read_manifest, verify
from trainwright.checkpoint.ownership import owner_after_resume
from trainwright.training.changes import refuse_another_experiment
from trainwright.training.run import TrainingRun
from trainwright.training.save import claim_run_directory, wants_checkpoints
from trainwright.training.save_model import run_folder
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")
#: The folder in a run directory for copies of checkpoints that another library wrote.
IMPORTED = "imported"


def resolve_checkpoint(setup: Setup, wanted: str | Path | bool | None) -> Path | None:
    """The verified folder to resume from; ``True``: the newest good one of this run, "auto": if there is one."""
    if wanted is None and setup.args.resume == "auto":
        wanted = "auto"
    if wanted is None or wanted is False:
        return None
    run = run_folder(setup)
    if setup.checkpointer is not None and (wanted is True or wanted == "auto"):
        fetched = setup.checkpointer.fetch()
        if fetched is None and wanted is True:
            raise ValueError("resume_from_checkpoint=True, but checkpointer.load() found none: use 'auto' or train().")
        return fetched
    if (wanted is True or wanted == "auto") and (newest := _newest_with_replaced_weights(setup, run)):
        return _verified(_copied_if_foreign(newest, run, "hf"))
    if wanted is True or wanted == "auto":
        if found := newest_good(run):
            return found
        _refuse_if_all_damaged(run)
        if foreign := _newest_of_transformers(run):
            return _verified(_copied_if_foreign(foreign, run, setup.args.checkpoint_format))
    if wanted == "auto":
        if hint := _hint_of_foreign(run):
            logger.warning("%s holds no checkpoint to go on from%s.", run, hint)
        return None
    if wanted is True:
        _refuse_if_of_another_run(run)
        raise ValueError(
            f"resume_from_checkpoint=True, but {run} holds no checkpoint{_hint_of_foreign(run)}. "
            "Start with train() or pass the path of a checkpoint-N folder."
        )
    return _verified(_copied_if_foreign(Path(wanted), run, setup.args.checkpoint_format))


def agreed_checkpoint(run: TrainingRun, wanted: str | Path | bool | None) -> Path | None:
    """The first process chooses, since it alone writes: what others see may be older by a moment."""
    setup = run.setup
    run.resumes_by_itself = wanted is None or wanted is True or wanted == "auto"
    if setup.checkpointer is not None:
        # What a checkpointer fetched is in a place of each process's own.
        fetched = resolve_checkpoint(setup, wanted)
        if fetched is not None:
            refuse_another_experiment(setup, fetched)
        return fetched
    own = resolve_checkpoint(setup, wanted) if setup.backend.rank == 0 else None
    owner = run.owner if own is None else owner_after_resume(own)
    checkpoint, run.owner = setup.backend.gather((own, owner))[0]
    if checkpoint is not None:
        refuse_another_experiment(setup, checkpoint)
    if wants_checkpoints(setup):
        is_named = checkpoint is not None and wanted not in (True, None, "auto")
        claim_run_directory(run, read_manifest(checkpoint)["step"] if is_named else None)
    return checkpoint


def _newest_with_replaced_weights(setup: Setup, run: Path) -> Path | None:
    """The newest checkpoint, where its weights were replaced and the arguments accept that: it is not damaged then."""
    newest = list_checkpoints(run)[-1:] if setup.args.checkpoint_format == "hf" else []
    return next((folder for folder in newest if replacement_of_weights(folder)), None)


def _is_of_transformers(folder: Path) -> bool:
    return not has_manifest(folder) and all(
        (folder / name).is_file() for name in ("optimizer.pt", "trainer_state.json")
    )


def _newest_of_transformers(run: Path) -> Path | None:
    """The newest checkpoint that transformers wrote into a folder where none of ours is."""
    if not run.is_dir() or all_checkpoints(run):
        return None
    found = [path for path in run.glob("checkpoint-*") if step_of(path) >= 0 and _is_of_transformers(path)]
    return max(found, key=step_of, default=None)


def _copied_if_foreign(folder: Path, run: Path, form: str) -> Path:
    """``folder``, or a copy in the run directory, in our own format, where another library wrote it or its weights.

    Read with ``weights_only=True`` and nothing else, as ``trainwright import`` does; the original stays as it is.
    """
    replaced = replacement_of_weights(folder) if form == "hf" else None
    if replaced is not None:

        def write(target: Path) -> None:
            write_with_replaced_weights(folder, target)
            logger.warning(
                "The weights of %s were replaced since it was saved: those of %s are taken as they are, without "
                "verification. Resuming from a copy of it in %s.",
                *(folder, replaced, run / IMPORTED),
            )

    elif _is_of_transformers(folder):

        def write(target: Path) -> None:
            done = import_checkpoint(folder, target)
            said = "%s was written by %s: resuming from a copy in our own format, in %s."
            logger.info(said, folder, done.library, run / IMPORTED)
            for note in done.notes:
                logger.warning("%s: %s.", folder.name, note)

    else:
        return folder
    return _copy_in_run(folder, run, write)


def _copy_in_run(folder: Path, run: Path, write: Callable[[Path], None]) -> Path:
    """``folder`` as ``write`` writes it, in a place of the run directory that no other checkpoint has.

    An earlier copy of the same folder goes when the new one is there, and nothing else ever.
    """
    source = folder.resolve()
    place = run / IMPORTED / hashlib.sha256(os.fsencode(source)).hexdigest()[:12]
    target, aside = place / source.name, place / "new" / source.name
    discard(aside.parent)
    write(aside)
    discard(target)
    aside.rename(target)
    aside.parent.rmdir()
    return target


def _verified(folder: Path) -> Path:
    """``folder``, or the newest good checkpoint in it; what is damaged is refused with a way out."""
    folder = put_back(folder)
    if list_checkpoints(folder):
        found = newest_good(folder)
        _refuse_if_all_damaged(folder) if found is None else None
        assert found is not None
        return found
    if folder.is_file():
        raise ValueError(f"{folder} is a file, and a checkpoint is a folder: pass the path of a checkpoint-N folder.")
    if not folder.is_dir():
        raise ValueError(f"{folder} is not there. Pass the path of a checkpoint-N folder.")
    if not has_manifest(folder):
        raise ValueError(f"{folder} is not a finished checkpoint of trainwright: it has no manifest{_hint(folder)}.")
    try:
        verify(folder)
    except DamagedCheckpoint as error:
        if replaced := replacement_of_weights(folder):
            raise ValueError(
                f"{error} {replaced} holds weights that somebody wrote since: with checkpoint_format='hf' they are "
                "taken as they are, without verification."
            ) from error
        other = newest_good(folder.parent)
        way_out = f" Resume from {other} instead, or pass True." if other else " There is no other one beside it."
        raise ValueError(f"{error}{way_out}") from error
    return folder


def _refuse_if_all_damaged(run: Path) -> None:
    damaged = list_checkpoints(run)
    if damaged:
        raise ValueError(
            f"Every checkpoint in {run} is damaged ({', '.join(path.name for path in damaged)}); "
            f"`trainwright verify {run}` says how. Move them away to start anew."
        )


def _refuse_if_of_another_run(run: Path) -> None:
    if others := all_checkpoints(run):
        raise ValueError(
            f"resume_from_checkpoint=True, but the checkpoints in {run} were written by another run. To go on from one "
            f"of them pass its path, {others[-1]} for example."
        )


def _hint(folder: Path) -> str:
    """How to use a folder that another library wrote."""
    foreign = ("optimizer.pt", "trainer_state.json", "pytorch_model.bin")
    if any((folder / name).exists() for name in foreign):
        return f". If another library wrote it: trainwright import {folder}"
    return ""


def _hint_of_foreign(run: Path) -> str:
    folders = [path for path in run.glob("checkpoint-*") if not has_manifest(path)] if run.is_dir() else []
    for folder in sorted(folders, key=lambda path: step_of(path) or 0, reverse=True):
        if hint := _hint(folder):
            return hint
    return ""
