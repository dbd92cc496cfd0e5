"""What there is to look at when a first step fails: the batches, the data, and how far the computation came."""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from torch import Tensor, nn

from trainwright.config.origin import OURS, library_of
from trainwright.engines.torch.targets import base_model, find_labels, is_mapping
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")

#: What labels are called in samples, whatever the model calls them.
LABELS = ("label", "label_ids", "labels")

#: A note on an error that has nothing to do with a step's batches.
IN_AN_EVALUATION = "this was in an evaluation, of evaluation data and not of training data"


@dataclass(frozen=True)
class Scene:
    """A first step that failed."""

    setup: Setup
    #: The step's micro-batches as the collator made them; empty where it did not come to that.
    batches: list[Any]
    error: Exception
    #: Functions that had not returned when the error was raised, the innermost last.
    frames: list[FrameType]

    @classmethod
    def of(cls, setup: Setup, batches: list[Any], error: Exception) -> Scene:
        return cls(setup, batches, error, list(_frames(error)))

    @property
    def is_collated_by_users(self) -> bool:
        """Whether somebody's own collator makes the batches: what it does to the samples is its business."""
        collate = self.setup.data_collator
        named = collate if inspect.isroutine(collate) else type(collate)
        return library_of(named) not in (OURS, "transformers")

    @property
    def network(self) -> nn.Module:
        """The model as its author wrote it."""
        return base_model(self.setup.model)

    def within(self, *functions: Callable[..., Any]) -> dict[str, Any] | None:
        """Local variables of the innermost call of one of ``functions``; None where none was running."""
        codes: set[CodeType] = {function.__code__ for function in functions if hasattr(function, "__code__")}
        return next((frame.f_locals for frame in reversed(self.frames) if frame.f_code in codes), None)

    def layer(self) -> tuple[str, nn.Module, dict[str, Any]] | None:
        """The innermost layer of the model whose forward was running: its name, itself, its local variables."""
        names = {id(module): name for name, module in self.network.named_modules()}
        for frame in reversed(self.frames):
            module = frame.f_locals.get("self")
            if isinstance(module, nn.Module) and frame.f_code.co_name == "forward" and id(module) in names:
                return names[id(module)], module, frame.f_locals
        return None

    def labels(self) -> Iterator[tuple[int, Tensor]]:
        """(number of the micro-batch, its labels), of those that have labels in one tensor."""
        for number, batch in enumerate(self.batches):
            found = labels_in_batch(self.setup, batch)
            if isinstance(found, Tensor):
                yield number, found

    def sample(self) -> Mapping[str, Any]:
        """The first sample of the training data, where samples have named fields; empty otherwise."""
        data = self.setup.train_dataset
        try:
            found = data[0] if hasattr(data, "__getitem__") else next(iter(data))
        except Exception:
            # The data may be what is broken; the error that is explained says so.
            return {}
        return found if isinstance(found, Mapping) else {}


def labels_in_batch(setup: Setup, batch: Any) -> Any:
    """The labels of a batch, by the name that the model has for them."""
    if is_mapping(batch):
        return next((batch[name] for name in (*setup.label_names, "labels") if batch.get(name) is not None), None)
    return find_labels(batch)


def _frames(error: BaseException) -> Iterator[FrameType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def shape_of(value: Any) -> str:
    """``(8, 5)`` for a tensor.

    >>> import torch
    >>> shape_of(torch.zeros(8, 5))
    '(8, 5)'
    """
    return str(tuple(value.shape))


def listed(names: Any, most: int = 12) -> str:
    """Names with commas between them, or that there are none.

    >>> listed(["a", "b"]), listed([])
    ('a, b', 'nothing')
    """
    found = [str(name) for name in itertools.islice(names, most + 1)]
    return ", ".join([*found[:most], "..."] if len(found) > most else found) or "nothing"


def said(explain: Callable[[Scene], str | None], scene: Scene) -> str | None:
    """What ``explain`` finds, or nothing where it fails itself."""
    try:
        return explain(scene)
    except Exception as second:
        # The error itself is what somebody has to see. A GPU that has failed cannot be asked for anything.
        logger.debug("The error could not be explained: %s: %s", type(second).__name__, second)
        return None


def names_of_labels(setup: Setup) -> tuple[str, ...]:
    """Under which names labels stand in a sample."""
    return (*setup.label_names, *LABELS)
