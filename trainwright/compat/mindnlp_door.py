"""What the door changes, and how it is changed back."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

from trainwright.compat.redirect import ScriptRedirection
from trainwright.compat.transformers_door import holders_of_trainer, is_open
from trainwright.config.engines import set_default_engine
from trainwright.config.origin import is_installed

logger = logging.getLogger("trainwright")
#: Installed packages that were told of.
_told: set[str] = set()


def _tell(package: str, name: str) -> None:
    """Say once that a library goes on with transformers' Trainer, which trains with torch."""
    if name.endswith("Trainer") and package not in _told:
        _told.add(package)
        logger.warning(
            "%s takes transformers' own %s, which trains with torch: its trainings do not run on MindSpore.",
            package,
            name,
        )


#: Scripts say `from transformers import Trainer`, which would train with torch and not say so.
_TRAINERS = ScriptRedirection(
    "transformers",
    {
        "transformers.training_args": {"TrainingArguments": "trainwright.config:TrainingArguments"},
        "transformers.training_args_seq2seq": {
            "Seq2SeqTrainingArguments": "trainwright.config:Seq2SeqTrainingArguments"
        },
        "transformers.trainer": {"Trainer": "trainwright.trainer:Trainer"},
        "transformers.trainer_seq2seq": {"Seq2SeqTrainer": "trainwright.trainer:Seq2SeqTrainer"},
    },
    _tell,
)
#: Undo what was changed, the last change first; empty while the door is closed.
_undo: list[Callable[[], Any]] = []


def open_door() -> None:
    """Make MindSpore the default engine and let ``from_pretrained`` take ``ms_dtype``; once."""
    if _undo:
        return
    if not is_open() and (holders := [name for name in holders_of_trainer() if _is_script(name)]):
        raise ImportError(
            f"{', '.join(holders)} imported transformers' Trainer before, and would train with torch. Put "
            "`import trainwright.compat.mindnlp` before that import; in a notebook restart the kernel first."
        )
    before = set_default_engine("mindspore")
    _undo.append(lambda: set_default_engine(before))
    try:
        import transformers
    except ImportError:
        # Native models need no transformers.
        return
    _understand_ms_dtype(transformers.PreTrainedModel)
    if not is_open():
        _TRAINERS.open()
        _undo.append(_TRAINERS.close)


def _is_script(holder: str) -> bool:
    file = getattr(sys.modules.get(holder), "__file__", None)
    return file is None or not is_installed(file)


def close() -> None:
    """Leave everything as it was before the door was opened."""
    while _undo:
        _undo.pop()()


def _understand_ms_dtype(model_class: Any) -> None:
    original = model_class.__dict__["from_pretrained"]

    @classmethod
    @functools.wraps(original.__func__)
    def from_pretrained(cls: object, *args: object, **kwargs: object) -> Any:
        return original.__func__(cls, *args, **with_torch_dtype(kwargs))

    model_class.from_pretrained = from_pretrained
    _undo.append(lambda: setattr(model_class, "from_pretrained", original))


def with_torch_dtype(kwargs: dict[str, Any]) -> dict[str, Any]:
    """``kwargs`` of from_pretrained with ``dtype`` in place of MindNLP's ``ms_dtype`` (or ``mindspore_dtype``)."""
    given = [name for name in ("ms_dtype", "mindspore_dtype") if name in kwargs]
    if not given:
        return kwargs
    if len(given) > 1 or "dtype" in kwargs or "torch_dtype" in kwargs:
        others = [name for name in ("ms_dtype", "mindspore_dtype", "dtype", "torch_dtype") if name in kwargs]
        raise ValueError(f"from_pretrained was given {' and '.join(others)}, which mean the same: keep one.")
    rest = {name: value for name, value in kwargs.items() if name not in given}
    return {**rest, "dtype": torch_dtype(kwargs[given[0]])}


def torch_dtype(dtype: object) -> Any:
    """torch's name for a MindSpore dtype (``mindspore.float16``, or its name)."""
    import torch

    name = str(dtype).rsplit(".", 1)[-1].lower()
    if name == "auto":
        return name
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(
            f"ms_dtype={dtype!r} is no precision for weights: use mindspore.float32, mindspore.float16 or "
            "mindspore.bfloat16."
        )
    return found
