"""Who holds which weights of a model that several processes train, and what can be asked of it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Layout:
    """Who holds which weights, and who writes them."""

    #: What users call it: sp, ddp, fsdp, deepspeed.
    name: str = "sp"
    #: Each process holds parts of the weights, and writes its own.
    in_parts: bool = False
    #: The first process writes, but all must come to put weights and optimizer state together.
    gathered_to_save: bool = False
    #: Between passes parameters are empty: their values are in buffers of somebody else's.
    empty_between_passes: bool = False
    #: Neighbouring processes that have the same samples.
    copies: int = 1


class Weights(Protocol):
    """How a model is spread over processes, as those see it who load, save and evaluate it."""

    @property
    def layout(self) -> Layout: ...

    def spread(self, model: Any, backend: Any, called: Any = None) -> Any:
        """Take the model, all processes starting with the weights of the first; returns it as it is to be called."""
        ...

    def bring(self, model: Any, device: Any) -> None:
        """Before the first training: to ``device``, where the Trainer has left that to the engine."""
        ...

    def take_optimizer(self, model: Any, optimizer: Any) -> Any:
        """Once there is an optimizer: the model, as :meth:`spread` returned it, as it is to be called."""
        ...

    def make_schedule(self, optimizer: Any, total_steps: int) -> Any:
        """A learning-rate schedule that the strategy's own configuration names, or None."""
        ...

    def whole(self, model: Any, optimizer: Any = None, *, keep: bool) -> AbstractContextManager[None]:
        """Within it both hold everything in single precision, in processes that ``keep`` it; all must come by."""
        ...

    def rewritten(self, model: Any, optimizer: Any = None) -> AbstractContextManager[None]:
        """The same in every process; what is written to them within it is what training goes on with."""
        ...

    def called_in_parts(self) -> AbstractContextManager[None]:
        """Around calls of the model's inner layers without the model itself, as ``generate`` makes them."""
        ...

    def settle(self) -> None:
        """After passes that no backward pass follows: parameters as they are between steps."""
        ...

    def recover(self) -> None:
        """Put the model back in order after a pass that was broken off."""
        ...
