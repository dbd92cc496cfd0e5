"""Whether a checkpoint that could be read holds what a run needs to go on from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

_COUNTS = ("global_step_completed", "batches_completed")


class IncompleteCheckpoint(ValueError):
    """What could be read is not what a run needs."""


@contextmanager
def naming_the_file(checkpointer: object) -> Iterator[None]:
    """Say in an :class:`IncompleteCheckpoint` which file it was, where the checkpointer knows."""
    try:
        yield
    except IncompleteCheckpoint as error:
        file = getattr(checkpointer, "loaded_from", None)
        raise (IncompleteCheckpoint(f"{file}: {error}") if file else error) from None


def check_parts(parts: Any, names: list[str], file: object) -> None:
    """Refuse what ``torch.save`` wrote and what is not the states of a run."""
    if not isinstance(parts, dict) or not set(parts) <= set(names):
        raise ValueError(f"{file} was written by torch.save but is no checkpoint of PyMarlin (a finished model only?).")
    if not any(parts.values()):
        _refuse(f"it is empty, {', '.join(names)} are missing", file)
    for name, part in parts.items():
        if part is not None and not isinstance(part, dict):
            _refuse(f"{name} is a {type(part).__name__}, not a dict", file)


def check_trainer_state(state: Any, *, with_tools: bool) -> None:
    """Refuse a trainer's state without an epoch or, ``with_tools``, with optimizers that torch did not write."""
    if not isinstance(state, dict):
        _refuse(f"trainer_state is a {type(state).__name__}, not a dict")
    epoch = state.get("last_epoch")
    if not isinstance(epoch, int) or isinstance(epoch, bool):
        _refuse("trainer_state has no last_epoch that is a whole number")
    if not with_tools:
        return
    for kind, needed in {"optimizers": ("state", "param_groups"), "schedulers": ()}.items():
        tools = state.get(kind, ())
        if not isinstance(tools, (list, tuple)):
            _refuse(f"{kind} of trainer_state is a {type(tools).__name__}, not a list")
        for place, tool in enumerate(tools):
            where = f"{kind}[{place}] of trainer_state"
            if not isinstance(tool, dict):
                _refuse(f"{where} is a {type(tool).__name__}, not a dict")
            _need(tool, needed, where)
            groups = tool["param_groups"] if needed else []
            if not isinstance(groups, list) or not all(isinstance(g, dict) and "params" in g for g in groups):
                _refuse(f"{where} has param_groups without params")


def check_counts(state: Any) -> None:
    """Refuse a backend's state, where there is one, that does not say how far the run has come."""
    if state:
        _need(state, _COUNTS, "trainer_backend_state")


def _need(state: dict[str, Any], names: tuple[str, ...], where: str) -> None:
    missing = [name for name in names if name not in state]
    if missing:
        _refuse(f"{where} has no {', '.join(missing)}")


def _refuse(why: str, file: object = None) -> NoReturn:
    where = f"{file}: " if file else ""
    raise IncompleteCheckpoint(
        f"{where}The checkpoint cannot be gone on from: {why}. Take another (load_filename), or set load_dir=None to "
        "start anew."
    )
