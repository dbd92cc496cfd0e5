"""How a run is spread over processes: the one seam for it.

``backend="sp"`` and ``"ddp"`` (and their ``-amp``, ``-bf16``, ``-fp16`` forms) are ready-made; an object of your own
with these members may be given as ``Trainer(..., backend=...)``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from trainwright.config.arguments import TrainingArguments


class Backend(Protocol):
    """What the engine asks of the processes it runs in. Every process calls the same methods in the same order."""

    name: str
    rank: int
    local_rank: int
    world_size: int

    def start(self, args: TrainingArguments) -> None:
        """Before anything is exchanged; may be called again for each training."""
        ...

    def share(self, tensors: Iterable[Any]) -> None:
        """Give every process, in place, the tensors of the first: weights before training, buffers in every step."""
        ...

    def reduce_gradients(self, parameters: Iterable[Any]) -> None:
        """Sum the gradients over all processes, in place; each has weighted its own by its share of the targets."""
        ...

    def sum(self, value: Any) -> Any:
        """A number, or a scalar tensor, summed over all processes."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """``value`` of every process, in the order of rank; plain objects and arrays in main memory."""
        ...

    def barrier(self) -> None:
        """Wait until every process has come here."""
        ...

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint keeps: JSON or tensors."""
        ...

    def update_state(self, state: dict[str, Any]) -> None: ...


BACKEND_MEMBERS = (
    "name",
    "rank",
    "local_rank",
    "world_size",
    "start",
    "share",
    "reduce_gradients",
    "sum",
    "gather",
    "barrier",
    "get_state",
    "update_state",
)
