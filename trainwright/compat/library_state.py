"""What other libraries' Trainers keep between steps and do not save: taken into every checkpoint, so that a resume is
exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, MutableMapping
from typing import Any

from trainwright.config.origin import library_of

#: Library -> attributes of its Trainers that change while they train: rollouts, counters, metrics until the next log.
#: Of TRL from 0.24 to 1.16, and of those that build on it; one that another version does not have is passed over.
KEPT = {
    "axolotl": ("_stored_metrics",),
    "llamafactory": ("_stored_metrics",),
    "trl": (
        "_step",
        "_buffered_inputs",
        "_metrics",
        "_stored_metrics",
        "_total_train_tokens",
        "_pending_metrics",
        "_entropy_window_stats",
        "entropy_coef",
        "_last_world_entropy",
    ),
}
#: Those that each process has of its own, where only the first one's is saved.
_OF_ONE_PROCESS = ("_buffered_inputs", "_entropy_window_stats")


def kept_names(trainer: object) -> Iterator[str]:
    """Names of what ``trainer``'s library keeps, as far as it has them."""
    libraries = {library_of(kind) for kind in type(trainer).__mro__}
    names = {name: None for library in sorted(libraries & KEPT.keys()) for name in KEPT[library]}
    yield from (name for name in names if name in vars(trainer))


def state_of(trainer: object, *, alone: bool) -> dict[str, Any]:
    """What is saved of it; rollouts only where there is one process."""
    names = [name for name in kept_names(trainer) if alone or name not in _OF_ONE_PROCESS]
    return {name: _plain(vars(trainer)[name]) for name in names}


def take_up(trainer: object, state: dict[str, Any]) -> None:
    """Put a saved state back; containers are filled, so that their kind (a dict of lists, say) stays."""
    for name, value in state.items():
        present = vars(trainer).get(name)
        if isinstance(present, MutableMapping):
            _fill(present, value)
        else:
            setattr(trainer, name, value)


def why_not_exact(trainer: Any) -> str | None:
    """Say what of a resume cannot be exact; None where everything can.

    A batch of rollouts serves for several steps: one that is in use when a checkpoint is written belongs to it.
    """
    libraries = {library_of(kind) for kind in type(trainer).__mro__}
    if "trl" not in libraries or not hasattr(trainer.args, "steps_per_generation"):
        return None
    if getattr(trainer, "use_vllm", False):
        return "vLLM draws the samples, and keeps its random numbers to itself"
    if not hasattr(trainer, "_buffered_inputs") or not hasattr(trainer, "_step"):
        return f"it is not known where this version of TRL keeps what {type(trainer).__name__} has generated"
    serves = trainer.args.steps_per_generation * trainer.num_iterations
    if trainer.args.world_size > 1 and serves > trainer.args.gradient_accumulation_steps:
        steps = serves // trainer.args.gradient_accumulation_steps
        return (
            f"samples serve for {steps} steps (steps_per_generation, num_iterations), and what each of several "
            f"processes has generated is not saved: only a checkpoint after a multiple of {steps} steps resumes exactly"
        )
    return None


def _plain(value: Any) -> Any:
    """Containers of the plain kinds that a checkpoint stores."""
    if isinstance(value, MutableMapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _fill(present: MutableMapping[Any, Any], saved: dict[Any, Any]) -> None:
    for key in [key for key in present if key not in saved]:
        del present[key]
    for key, value in saved.items():
        if isinstance(present, defaultdict) and isinstance(value, dict):
            # Made as it makes them, so that what it holds may grow by new names too.
            present[key]
        if isinstance(present.get(key), MutableMapping):
            _fill(present[key], value)
        else:
            present[key] = value
