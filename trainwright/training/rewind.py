"""``rewind_on_nonfinite``: back to the last good checkpoint, without the batches that failed."""

from __future__ import annotations

from trainwright.checkpoint.directory import newest_good
from trainwright.core.config_history import write_history
from trainwright.core.errors import NonFiniteError
from trainwright.core.run import Rewind
from trainwright.training.build import fill
from trainwright.training.log_keeping import go_back_in_log
from trainwright.training.performance import begin_part, end_part
from trainwright.training.run import TrainingRun
from trainwright.training.save_model import run_folder


def go_back(run: TrainingRun, wanted: Rewind) -> None:
    """Put the same run back to its newest good checkpoint; raises if there is none, or if that did not help before."""
    setup = run.setup
    run.saver.wait()
    setup.backend.barrier()
    # By one: what the others see of a shared disk may be older by a moment.
    found = newest_good(run_folder(setup)) if setup.backend.rank == 0 else None
    checkpoint = setup.backend.gather(found)[0]
    if checkpoint is None or run.last_rewind == (checkpoint, wanted.step):
        # Nowhere to go, or the same place twice: leaving out batches did not help.
        raise NonFiniteError(wanted.step, setup.args.max_nonfinite_steps or 1)
    run.last_rewind = (checkpoint, wanted.step)
    end_part(run)
    run.left_out += wanted.batches
    setup.hooks()._load_from_checkpoint(str(checkpoint))
    fill(run, checkpoint)
    go_back_in_log(run)
    begin_part(run)
    if setup.loss_groups is not None:
        setup.loss_groups.forget_steps()
    if setup.args.should_save:
        write_history(run_folder(setup), run.history)
    for modifier in setup.modifiers:
        # Also where its start lies ahead again: what it did to the model is to be undone.
        if modifier.site is not None:
            modifier.resume(modifier.site, setup.state.epoch or 0.0)
    for epoch, batches in run.left_out:
        run.feed.leave_out(epoch, batches)
    run.events.record(
        "rewound",
        f"Went back from step {wanted.step} to {checkpoint.name}; the batches that failed are left out.",
        step=wanted.step,
        left_out=wanted.batches,
    )
