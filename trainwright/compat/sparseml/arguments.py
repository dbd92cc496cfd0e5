"""TrainingArguments as SparseML's scripts fill them in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trainwright.config import TrainingArguments as NativeTrainingArguments


@dataclass(repr=False)
class TrainingArguments(NativeTrainingArguments):
    """trainwright's arguments (``best_model_after_epoch`` is one of them), and what a command line says of a recipe.

    The Trainer takes these where it is not given others itself.

    >>> TrainingArguments("runs/sparse", recipe="recipe.yaml", recipe_args="num_epochs=3").recipe_args
    'num_epochs=3'
    """

    distill_teacher: str | None = field(
        default=None, metadata={"help": "Folder of a trained model to learn from, 'self' or 'disable'."}
    )
    recipe: str | None = field(default=None, metadata={"help": "Path of a recipe."})
    recipe_args: str | None = field(
        default=None, metadata={"help": "Other values for its variables: JSON or name=value,name=value."}
    )


def argument(args: object, name: str, given: object) -> Any:
    """What a Trainer was given, or else what its arguments say; ``args`` need not be of the class above."""
    said = getattr(args, name, None) or None
    if given is None:
        return said
    if said is not None and name == "recipe" and str(said) != str(given):
        raise ValueError(
            f"recipe={str(given)[:60]!r} was given to the Trainer and {said!r} to its arguments: keep one."
        )
    return given
