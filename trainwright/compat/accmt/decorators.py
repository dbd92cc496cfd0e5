"""Decorators: functions that only some of the processes run; in the others they return None."""

from __future__ import annotations

from trainwright.compat.accmt.this_process import Function, ThisProcess

accelerator = ThisProcess()


def on_main_process(function: Function) -> Function:
    """Run it in the first process only.

    >>> on_main_process(lambda: "here")()
    'here'
    """
    return accelerator.on_main_process(function)


def on_last_process(function: Function) -> Function:
    """Run it in the last process only."""
    return accelerator.on_last_process(function)


def on_local_main_process(function: Function) -> Function:
    """Run it in the first process of each machine only."""
    return accelerator.on_local_main_process(function)


def on_local_process(function: Function | None = None, local_process_index: int | None = None) -> Function:
    """Run it in the process of this number on each machine only."""
    return accelerator.on_local_process(function, local_process_index)


def on_process(function: Function | None = None, process_index: int | None = None) -> Function:
    """Run it in the process of this number only."""
    return accelerator.on_process(function, process_index)
