"""What the door changes, and how it is changed back."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from trainwright.config.engines import set_default_engine

#: Names of transformers that train, and that do so with torch alone.
_TRAINERS = ("Trainer", "Seq2SeqTrainer")
#: Undo what was changed, the last change first; empty while the door is closed.
_undo: list[Callable[[], Any]] = []


def open_door() -> None:
    """Make MindSpore the default engine and let ``from_pretrained`` take ``ms_dtype``; once."""
    if _undo:
        return
    before = set_default_engine("mindspore")
    _undo.append(lambda: set_default_engine(before))
    try:
        import transformers
    except ImportError:
        # Native models need no transformers.
        return
    _understand_ms_dtype(transformers.PreTrainedModel)
    _refuse_trainers(transformers)


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


def _refuse_trainers(transformers: object) -> None:
    """``from transformers import Trainer`` would train with torch and not say so."""
    kept = transformers.__class__

    def refusing(name: str) -> property:
        return property(lambda module: _given(kept, module, name))

    door = type(kept.__name__, (kept,), {name: refusing(name) for name in _TRAINERS})
    transformers.__class__ = door
    _undo.append(lambda: setattr(transformers, "__class__", kept))


def _given(kept: type, module: Any, name: str) -> Any:
    asking = sys._getframe(2)
    file = asking.f_code.co_filename
    if "site-packages" in file or file.startswith("<frozen"):
        # Another library's own business.
        return kept.__getattr__(module, name)
    raise ImportError(
        f"{file}, line {asking.f_lineno}: transformers' {name} trains with torch, not with MindSpore. Write `from "
        f"trainwright import {name}` there (TrainingArguments too), or trainwright.compat.mindnlp.close() before it."
    )
