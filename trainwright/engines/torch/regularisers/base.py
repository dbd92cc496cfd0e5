"""What regularisers have in common: modifiers of a training that are given among its callbacks."""

from __future__ import annotations

from typing import Any

from trainwright.config.arguments import TrainingArguments
from trainwright.core.modifier import Modifier
from trainwright.core.state import TrainerControl, TrainerState


class Regulariser(Modifier):
    """A modifier for ``Trainer(callbacks=[...])`` and ``callbacks:`` of an experiment; it acts from start to end."""

    may_repeat = False
    changes_weights = False
    # Of a sharded parameter each process would see its own part.
    needs_whole_tensors = True

    def __init__(self) -> None:
        super().__init__()
        self._seed = self._step = 0

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._seed, self._step = args.seed, state.global_step
