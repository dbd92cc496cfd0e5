"""Which names of transformers lead to ours while the door is open, and who may not have them already."""

from __future__ import annotations

import sys

from trainwright.compat.redirect import Redirection
from trainwright.config.origin import OURS

_UNDERNEATH = "trainwright.compat.underneath"

TRANSFORMERS = Redirection(
    "transformers",
    {
        "transformers.training_args": {"TrainingArguments": f"{_UNDERNEATH}:TrainingArguments"},
        "transformers.training_args_seq2seq": {"Seq2SeqTrainingArguments": f"{_UNDERNEATH}:Seq2SeqTrainingArguments"},
        "transformers.trainer": {"Trainer": f"{_UNDERNEATH}:Trainer"},
        "transformers.trainer_seq2seq": {"Seq2SeqTrainer": f"{_UNDERNEATH}:Seq2SeqTrainer"},
    },
)


def open_door() -> None:
    """Make transformers' Trainer and arguments ours in this process; refused where somebody has them already."""
    if TRANSFORMERS.is_open:
        return
    if holders := holders_of_trainer():
        raise ImportError(
            f"{', '.join(holders)} imported transformers' Trainer before, and would go on training with it. Put "
            "`import trainwright.compat.transformers` before that import, or start the script with `trainwright run`."
        )
    TRANSFORMERS.open()


def close() -> None:
    """Give the names back; classes that were built on ours stay so."""
    TRANSFORMERS.close()


def is_open() -> bool:
    """Return True while transformers' Trainer is ours in this process."""
    return TRANSFORMERS.is_open


def holders_of_trainer() -> list[str]:
    """Modules outside transformers that hold its own Trainer, or a class built on it."""
    trainer = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    if trainer is None:
        return []
    found = []
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("transformers", "__mp_main__", OURS) or not isinstance(
            getattr(module, "__dict__", None), dict
        ):
            continue
        held = [value for value in list(vars(module).values()) if issubclass(type(value), type)]
        if any(trainer in value.__mro__ for value in held):
            found.append("this script" if name == "__main__" else name)
    return sorted(found)[:3]
