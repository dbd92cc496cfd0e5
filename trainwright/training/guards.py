"""Callbacks that watch over one run: its watchdog, its weights, its processes' logs and speed."""

from __future__ import annotations

from functools import partial

from trainwright.callbacks.rank_log import RankLogCallback
from trainwright.callbacks.stragglers import StragglersCallback
from trainwright.callbacks.watchdog import WatchdogCallback
from trainwright.engines.torch.weight_check import weight_check
from trainwright.training.run import TrainingRun
from trainwright.training.save_model import run_folder
from trainwright.training.save_room import SaveRoomCallback, wants_room_for_saves
from trainwright.training.stop import leave_hanging


def set_guards(run: TrainingRun) -> None:
    """Let them hear the run's events, also where it goes back to a checkpoint."""
    setup = run.setup
    rank, world_size = setup.backend.rank, setup.backend.world_size
    seconds, guards = setup.args.watchdog_seconds, run.guards
    if seconds and (setup.args.should_save or world_size > 1):
        ends, last = setup.args.watchdog_exit, partial(leave_hanging, run)
        guards.append(WatchdogCallback(run.events, seconds, ends, rank=rank, world_size=world_size, before_exit=last))
    check = weight_check(setup.args.check_weights_every, setup.engine.weights.layout, setup.backend, run.events)
    if check is not None:
        guards.append(check)
    if world_size > 1:
        guards.append(RankLogCallback(run_folder(setup), rank, setup.args.get_process_log_level()))
        guards.append(StragglersCallback(setup.engine.step_times))
    if wants_room_for_saves(setup):
        guards.append(SaveRoomCallback(partial(run.capture.prepare, setup)))
    present = {type(callback) for callback in setup.callbacks.everyone}
    # Somebody may have brought a watchdog with other settings.
    run.guards = [guard for guard in guards if type(guard) not in present]
    for guard in run.guards:
        setup.callbacks.add_callback(guard)


def dismiss_guards(run: TrainingRun) -> None:
    """The run is over."""
    for guard in run.guards:
        run.setup.callbacks.pop_callback(guard)
