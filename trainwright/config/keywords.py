"""Keyword arguments that nobody takes: which one was meant, or what it is called here."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from trainwright.config.registry import suggestion

Function = TypeVar("Function", bound=Callable[..., Any])

#: Words of other libraries and of everyday speech -> what says the same here.
USUAL_WORDS = {
    "accelerator": "use_cpu: true trains on the CPU; a GPU is used where there is one",
    "batch_size": "per_device_train_batch_size",
    "clip_grad_norm": "max_grad_norm",
    "cuda": "use_cpu: true trains on the CPU; a GPU is used where there is one",
    "device": "use_cpu: true trains on the CPU; a GPU is used where there is one, and CUDA_VISIBLE_DEVICES says which",
    "devices": "start several processes with `trainwright launch -N`; CUDA_VISIBLE_DEVICES says which GPUs",
    "early_stopping_patience": "callbacks: {early_stopping: {patience: 3}}, or EarlyStoppingCallback in Python",
    "epochs": "num_train_epochs",
    "eval_batch_size": "per_device_eval_batch_size",
    "gpus": "start several processes with `trainwright launch -N`; CUDA_VISIBLE_DEVICES says which GPUs",
    "gradient_clip_val": "max_grad_norm",
    "gradient_clipping": "max_grad_norm",
    "grad_accum_steps": "gradient_accumulation_steps",
    "lr": "learning_rate",
    "max_epochs": "num_train_epochs",
    "n_epochs": "num_train_epochs",
    "num_epochs": "num_train_epochs",
    "num_workers": "dataloader_num_workers",
    "optimizer": "optim",
    "out_dir": "output_dir",
    "precision": "bf16: true or fp16: true",
    "save_dir": "output_dir",
    "scheduler": "lr_scheduler_type",
    "steps": "max_steps",
    "train_batch_size": "per_device_train_batch_size",
    "warmup": "warmup_steps",
    "workers": "dataloader_num_workers",
}


def hint_for(name: str, known: Iterable[str]) -> str:
    """What to write in place of ``name``, in brackets; nothing where there is no telling.

    >>> hint_for("learing_rate", ["learning_rate"]), hint_for("lr", ["learning_rate"])
    (" (did you mean 'learning_rate'?)", ' (here it is learning_rate)')
    """
    known = list(known)
    usual = USUAL_WORDS.get(name)
    if usual is not None and (" " in usual or usual in known):
        return f" ({usual})" if " " in usual else f" (here it is {usual})"
    return suggestion(name, known)


def suggests_keywords(elsewhere: Callable[[str], str] = lambda name: "") -> Callable[[Function], Function]:
    """A decorator: the TypeError for an unknown keyword says which one was meant; ``elsewhere`` may say more.

    >>> @suggests_keywords()
    ... def lamp(*, bright=True): ...
    >>> lamp(brihgt=False)
    Traceback (most recent call last):
    TypeError: lamp() got an unexpected keyword argument 'brihgt' (did you mean 'bright'?)
    """

    def decorate(function: Function) -> Function:
        parameters = set(inspect.signature(function).parameters)
        known = sorted(name for name in parameters if name != "self" and not name.startswith("_"))

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if not kwargs.keys() <= parameters:
                name = next(name for name in kwargs if name not in parameters)
                hint = elsewhere(name) or hint_for(name, known)
                raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}{hint}")
            return function(*args, **kwargs)

        return cast(Function, called)

    return decorate


#: What belongs to the Trainer, and is given to its arguments at times.
_OF_THE_TRAINER = frozenset(
    ("callbacks", "compute_metrics", "data_collator", "eval_dataset", "model", "processing_class", "train_dataset")
)


def suggest_in_constructor(cls: type) -> None:
    """Let a finished dataclass of arguments suggest names; its signature stays what it was."""

    def elsewhere(name: str) -> str:
        return f" (it is the Trainer's: Trainer(..., {name}=...))" if name in _OF_THE_TRAINER else ""

    constructor: Any = cls.__init__
    setattr(cls, "__init__", suggests_keywords(elsewhere)(constructor))  # noqa: B010 (type checkers forbid it plainly)
