"""Try everything that must not change a training, the quick things first, as long as the budget lasts."""

from __future__ import annotations

import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from trainwright.data.loader import has_length
from trainwright.engines.torch.targets import base_model
from trainwright.proving.copies import copied, nothing_said, random_numbers_put_back
from trainwright.proving.duplicates import shared_tensors, wrote_what_is_shared
from trainwright.proving.material import material_of
from trainwright.proving.processes import process_rows
from trainwright.proving.record import compare
from trainwright.proving.refusals import first_line, is_refusal
from trainwright.proving.result import AGAIN, OVER, Proof, Row, measured
from trainwright.proving.resume import resume_row
from trainwright.proving.stage import Stage, Way
from trainwright.proving.steps import Attempt, accelerated_blocks, not_tried, step_rows
from trainwright.training.hooks import is_ours, is_overridden
from trainwright.training.own_state import OwnState
from trainwright.training.setup import Setup, require_model


def prove(source: Setup, budget: float, seed: int | None = None) -> Proof:
    """Compare short trainings of copies of a Trainer; the Trainer itself stays as it is."""
    start = time.perf_counter()
    _refuse(source, budget, seed)
    # Not from the generators that the training draws from.
    chosen = random.SystemRandom().randrange(2**31) if seed is None else seed
    shared = shared_tensors(source.train_dataset)
    with (
        tempfile.TemporaryDirectory(prefix="trainwright-prove-") as folder,
        random_numbers_put_back(),
        nothing_said(),
        flags_put_back(),
    ):
        stage, notes = _stage(source, Path(folder))
        rows = _tried(stage, chosen, start + budget)
    if any(tensor._version != version for tensor, version in shared):
        notes.append(
            "train_dataset writes into its own tensors, and copies share large ones: they are not what they were "
            "before. Give it a __deepcopy__ that copies them, too."
        )
    args = source.args
    if listeners := _left_out(source):
        notes.append(f"Left out, because callbacks may write: {listeners}.")
    return Proof(
        type(base_model(source.model)).__name__,
        args.device.type,
        str(stage.dtype).removeprefix("torch."),
        max(stage.material.rows),
        budget,
        time.perf_counter() - start,
        chosen,
        rows,
        notes,
    )


def _left_out(source: Setup) -> str:
    """The user's callbacks; their Module or Trainer that listens is none."""
    found = (one for one in source.callbacks.callbacks if not is_ours(one) and not isinstance(one, OwnState))
    return ", ".join(dict.fromkeys(type(one).__name__ for one in found))


def _refuse(source: Setup, budget: float, seed: int | None) -> None:
    require_model(source)
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not budget > 0:
        raise ValueError(f"budget={budget!r} must be a number of seconds, more than 0.")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
        raise ValueError(f"seed={seed!r} must be a whole number from 0 on, or None for another one each time.")
    is_read = not is_overridden(source.hooks(), "get_train_dataloader")
    if is_read and has_length(source.train_dataset) and not len(source.train_dataset):
        raise ValueError("train_dataset is empty: prove needs samples to train on.")
    if source.run is not None:
        raise ValueError("This Trainer is training: prove it before or after.")
    if source.args.engine != "torch":
        raise ValueError(f"prove compares trainings of engine='torch', and this one has engine={source.args.engine!r}.")
    if source.backend.world_size > 1:
        raise ValueError("prove starts processes of its own: start it as one process, without torchrun.")


def _stage(source: Setup, folder: Path) -> tuple[Stage, list[str]]:
    """Where copies train: in the widest format in which a plain training runs."""
    try:
        material = material_of(copied(source, {}, str(folder / "material")))
    except ValueError as error:
        if not wrote_what_is_shared(error):
            raise
        raise ValueError(
            f"train_dataset writes into an array ({error}), and copies share large ones: let it write into a copy of "
            "what it reads, or give it a __deepcopy__ that copies them, too."
        ) from error
    notes = [material.note + "."] if material.note else []
    if source.args.device.type == "cpu":
        stage = Stage(source, material, folder, torch.float64)
        try:
            stage.reference()
        except Exception as error:
            notes.append(f"In float32, because float64 is refused: {first_line(error)}")
        else:
            _refuse_what_is_no_number(stage)
            return stage, notes
    stage = Stage(source, material, folder, torch.float32)
    try:
        stage.reference()
    except AttributeError as error:
        if not (listeners := _left_out(source)):
            raise
        raise ValueError(
            f"A plain training raises {first_line(error)}. Callbacks are left out of a proof, because they may write "
            f"({listeners}): where one of them sets this, set it in the model or in the Trainer instead."
        ) from error
    _refuse_what_is_no_number(stage)
    return stage, notes


def _refuse_what_is_no_number(stage: Stage) -> None:
    """Nothing can be compared with it."""
    plain = stage.reference()
    for step, loss in enumerate(plain.losses, 1):
        if not math.isfinite(loss):
            raise ValueError(
                f"The loss of step {step} of a plain training is {loss}, and nothing can be compared with that: mend "
                "it first (a rate that is too high, a logarithm of 0, an update without a target)."
            )
    for step, gradients in enumerate(plain.gradients, 1):
        for name, gradient in gradients.items():
            if not gradient.isfinite().all():
                raise ValueError(
                    f"The gradient of {name} in step {step} of a plain training is not finite, and nothing can be "
                    "compared with that: mend it first."
                )


def _tried(stage: Stage, seed: int, end: float) -> list[Row]:
    """One row after the other, until the time is over."""
    repeated = Attempt(AGAIN, lambda: _same_again(stage), 3.0)
    rows = [_told(_try(repeated, stage, end))]
    draws = None
    if rows[0].outcome == "not tried" and rows[0].why != OVER:
        draws = "the training draws random numbers besides dropout, and other ones for other pieces"
    attempts = [
        *step_rows(stage, draws=draws),
        Attempt("resume", lambda: resume_row(stage.source, stage.folder / "resume", seed), 12.0),
        *process_rows(stage, end, draws=draws),
        accelerated_blocks(stage),
    ]
    return rows + [_told(_try(attempt, stage, end)) for attempt in attempts]


def _told(row: Row) -> Row:
    """Who waits at a terminal sees what has been done."""
    if sys.stderr is not None and sys.stderr.isatty() and row.why != OVER:
        sys.stderr.write(f"  {row.name}: {'FAIL' if row.outcome == 'fail' else row.outcome} ({row.seconds:.1f} s)\n")
    return row


def _try(attempt: Attempt, stage: Stage, end: float) -> Row:
    left = end - time.perf_counter()
    if left <= 0 or attempt.trainings * stage.seconds + attempt.more_seconds > left:
        return not_tried(attempt.name, OVER)
    try:
        return attempt.run()
    except Exception as error:
        if is_refusal(error):
            return not_tried(attempt.name, first_line(error))
        if wrote_what_is_shared(error):
            return not_tried(attempt.name, f"it writes into an array of the data, which copies share ({error})")
        return Row(attempt.name, "fail", f"it raises {first_line(error)}")


def _same_again(stage: Stage) -> Row:
    """Dropout is off, so that nothing should depend on the seed; where something does, cut batches say nothing."""
    name = AGAIN
    start = time.perf_counter()
    found = compare(stage.train(Way({"seed": stage.source.args.seed + 1})), stage.reference())
    row = measured(name, found, stage.allowed(), time.perf_counter() - start)
    if row.outcome == "fail":
        return not_tried(name, f"the training draws random numbers besides dropout: losses differ by {found.loss:.1g}")
    return row


@contextmanager
def flags_put_back() -> Iterator[None]:
    """Switches of the process that trainings set."""
    precision = torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(deterministic)
