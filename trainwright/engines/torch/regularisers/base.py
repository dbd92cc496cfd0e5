"""What regularisers have in common: modifiers of a training that are given among its callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from trainwright.config.arguments import TrainingArguments
from trainwright.core.modifier import Modifier
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.engines.torch.ensembles.ensemble import Ensemble


class Regulariser(Modifier):
    """A modifier for ``Trainer(callbacks=[...])`` and ``callbacks:`` of an experiment; it acts from start to end."""

    may_repeat = False
    changes_weights = False
    # Of a sharded parameter each process would see its own part.
    needs_whole_tensors = True
    #: Whether it lets a batch pass a second time, which must then be the same batch.
    passes_again = False
    #: Whether it does so with weights that it has moved.
    moves_weights = False
    #: Whether it makes another batch of the one that comes, anew at each pass.
    mixes = False
    #: Whether it would act on the members of an ensemble together.
    joins_members = True

    def __init__(self) -> None:
        super().__init__()
        self._seed = self._step = 0

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._seed, self._step = args.seed, state.global_step


def refuse_together(given: Sequence[Any], model: nn.Module) -> None:
    """Regularisers that would undo each other, or that an ensemble would not have member by member."""
    ours = [one for one in given if isinstance(one, Regulariser)]
    moving = [type(one).__name__ for one in ours if one.moves_weights]
    if len(moving) > 1:
        raise ValueError(f"{' and '.join(moving)} each move the weights for a second pass: keep one of them.")
    again, mixing = [one for one in ours if one.passes_again], [one for one in ours if one.mixes]
    if again and mixing:
        names = f"{type(again[0]).__name__} and {type(mixing[0]).__name__}"
        raise ValueError(f"{names}: the second pass would be over another mixture than the first. Keep one of them.")
    joining = [one for one in ours if one.joins_members]
    if joining and isinstance(model, Ensemble):
        raise ValueError(
            f"{type(joining[0]).__name__} would act on the members of an Ensemble together, and not on each: leave it "
            "out, or train the members one by one."
        )
