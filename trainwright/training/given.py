"""What a Trainer was given, looked at when it is built: its form, and names of events that nobody calls."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

from trainwright.config.origin import OURS, library_of
from trainwright.core.callback import EVENTS
from trainwright.training.hooks import is_overridden
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")

#: How alike a method's name and an event's are for a slip of the pen: on_evaluate_end and on_evaluate still are.
_ALIKE = 0.84


def refuse_other_forms(
    train_dataset: object, eval_dataset: object, data_collator: object, callbacks: object, optimizers: object
) -> None:
    """Arguments of the Trainer that are something else than it takes, with what to write."""
    _refuse_what_is_no_dataset("train_dataset", train_dataset)
    sets = eval_dataset if isinstance(eval_dataset, dict) else {"": eval_dataset}
    for name, one in sets.items():
        _refuse_what_is_no_dataset(f"eval_dataset[{name!r}]" if name else "eval_dataset", one)
    if data_collator is not None and not callable(data_collator):
        raise TypeError(
            f"data_collator must be a function that makes a batch of a list of samples, not {_shown(data_collator)}: "
            "give one such as DataCollatorWithPadding(tokenizer), or leave it out."
        )
    if callbacks is not None and (isinstance(callbacks, (str, type)) or not isinstance(callbacks, Iterable)):
        raise TypeError(f"callbacks must be a list, not {_shown(callbacks)}: write callbacks=[...] around it.")
    if not isinstance(optimizers, (tuple, list)) or len(optimizers) != 2:
        raise TypeError(
            f"optimizers must be a pair of an optimizer and a schedule, not {_shown(optimizers)}: write "
            "optimizers=(optimizer, None) for the schedule that the arguments say."
        )


def _refuse_what_is_no_dataset(name: str, given: object) -> None:
    if isinstance(given, (str, os.PathLike)):
        raise TypeError(
            f"{name} must hold samples, and {str(given)!r} is text: read the file first, as in "
            "datasets.load_dataset('csv', data_files=...)['train']; trainwright.train reads files that an experiment "
            "names."
        )
    if isinstance(given, (int, float)):
        raise TypeError(f"{name} must hold samples, and {given!r} is a number: give a dataset, or leave it out.")


def _shown(given: object) -> str:
    return repr(given) if isinstance(given, (str, int, float)) else getattr(given, "__name__", type(given).__name__)


def warn_of_misspelled_events(callbacks: list[Any]) -> None:
    """Methods of users' callbacks that nobody calls, and that are named almost like an event."""
    for callback in callbacks:
        kind = callback if isinstance(callback, type) else type(callback)
        if kind is str or library_of(kind) in (OURS, "transformers"):
            continue
        for name in dir(kind):
            near = difflib.get_close_matches(name, EVENTS, n=1, cutoff=_ALIKE) if name.startswith("on_") else []
            if near and name not in EVENTS:
                logger.warning("%s.%s is no event, so nobody calls it: did you mean %s?", kind.__name__, name, near[0])


def refuse_optimizer_of_another_model(setup: Setup) -> None:
    """An optimizer that would never change the model: it was made of the parameters of another one."""
    optimizer, hooks = setup.optimizer, setup.hooks()
    groups = getattr(optimizer, "param_groups", None)
    # A loss of one's own may train what is no part of the model.
    own_loss = setup.compute_loss_func is not None or any(
        is_overridden(hooks, name) for name in ("compute_loss", "training_step")
    )
    if setup.model is None or setup.module is not None or not isinstance(groups, list) or own_loss:
        return
    held = {id(one) for group in groups if isinstance(group, Mapping) for one in group.get("params", ())}
    trained = [one for one in setup.model.parameters() if one.requires_grad]
    if held and trained and not any(id(one) in held for one in trained):
        raise ValueError(
            f"The optimizer in optimizers= holds none of the {len(trained)} parameters of the model that are trained: "
            f"it was made of another model, or of a copy. Make it of this one: {type(optimizer).__name__}"
            "(model.parameters(), ...)."
        )
