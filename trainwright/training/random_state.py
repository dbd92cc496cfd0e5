"""Read and restore random states: those of the libraries, and of generators that users' objects keep."""

from __future__ import annotations

import types
from collections.abc import Iterator
from functools import partial
from typing import Any

from trainwright.config.origin import library_of
from trainwright.data.own_data import say_what_is_wrong
from trainwright.engines.torch.randomness import RandomState, random_state, set_random_state, with_own
from trainwright.engines.torch.targets import unwrap
from trainwright.randomness import generators
from trainwright.training.hooks import is_ours
from trainwright.training.run import TrainingRun
from trainwright.training.setup import Setup

_LIBRARIES = frozenset(("builtins", "torch", "numpy", "trainwright", "transformers", "datasets", "peft", "accelerate"))


def watch_generators(setup: Setup) -> None:
    """Before a training: find the generators that take part in its steps."""
    # Callbacks often hold the Trainer, which leads to everything.
    data = (setup.train_dataset, setup.eval_dataset, setup.data_collator, setup.processing_class)
    setup.engine.own_generators.watch(
        partial(own_roots, setup), iterators=False, passed_by=(setup.hooks(), setup, setup.given_args, *data)
    )


def own_roots(setup: Setup) -> dict[str, Any]:
    """Whatever of the user's may draw random numbers in a step."""
    roots: dict[str, Any] = {"model": unwrap(setup.model), "compute_loss_func": setup.compute_loss_func}
    named = [("optimizer", setup.optimizer), ("lr_scheduler", setup.lr_scheduler)]
    named += [(type(callback).__name__, callback) for callback in setup.callbacks.everyone]
    named += [(type(modifier).__name__, modifier) for modifier in setup.modifiers]
    for name, thing in named:
        if library_of(type(thing)) not in _LIBRARIES:
            roots[f"{name} {len(roots)}" if name in roots else name] = thing
    teachers = [teacher for m in setup.modifiers if (teacher := getattr(m, "teacher", None)) is not None]
    return {**roots, **{f"teacher {place}": one for place, one in enumerate(teachers)}, **dict(of_subclass(setup))}


def of_subclass(setup: Setup) -> Iterator[tuple[str, Any]]:
    """List what a subclass of the Trainer brings: its methods, and attributes of its instance."""
    for kind in type(setup.hooks()).__mro__:
        if library_of(kind) in _LIBRARIES:
            break
        for name, method in vars(kind).items():
            if isinstance(method, types.FunctionType):
                yield f"trainer.{name}()", method
    if is_ours(setup.hooks()):
        return
    # What it was given, and draws elsewhere, stands in the setup.
    for name, value in vars(setup.hooks()).items():
        is_theirs = library_of(type(value)) not in _LIBRARIES
        if is_theirs or generators.kind_of(value) is not None:
            yield f"trainer.{name}", value


def random_now(setup: Setup) -> RandomState:
    """State of all generators as they are now."""
    own = setup.engine.own_generators
    return with_own(random_state(), own.to_json(own.capture()))


def say_what_came_late(run: TrainingRun) -> None:
    """Name generators that a resumed run will not have when it takes up its states."""
    setup = run.setup
    late, setup.engine.own_generators.late = setup.engine.own_generators.late, []
    if late and setup.backend.rank == 0:
        run.events.record(
            "not_exact",
            f"A resume of this run will not be exact: {', '.join(late)} came only with the first step, and a "
            "resumed run makes them anew; make random generators when the model is built.",
        )


def restore_random_state(setup: Setup, random: RandomState) -> None:
    set_random_state(*random)
    say_what_is_wrong(setup.engine.own_generators.load(random[1].get("own", {})))
