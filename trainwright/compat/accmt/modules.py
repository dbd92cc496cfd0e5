"""AcceleratorModule: the model and its steps in ACCMT's words."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from trainwright.config.refused_versions import refuse_unsafe_transformers

logger = logging.getLogger("trainwright")

_STEPS = ("training_step", "validation_step")


class ModuleRun(Protocol):
    """What a module reaches of the training it is in."""

    #: ACCMT's status, kept up to date.
    status: dict[str, Any]
    #: The same in the names of later versions.
    training_state: Any
    accelerator: Any
    log_every: int

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        ...

    def log(self, values: Mapping[str, Any], *, instant: bool) -> None: ...
    def backward(self, loss: Tensor) -> None: ...


class AcceleratorModule:
    """A model with the steps that train it; not a ``torch.nn.Module``.

    Put the network into ``self.model``; a network in ``self.teacher`` is placed, frozen and compiled with it, and adds
    no loss by itself. Define ``step(batch)``, or ``training_step(batch)`` and ``validation_step``. Steps may take the
    live status as well: ``step(batch, status_dict)``. ``validation_step`` may take the data set's name first:
    ``validation_step(key, batch)``.

    >>> class Line(AcceleratorModule):
    ...     def __init__(self):
    ...         self.model = nn.Linear(1, 1)
    ...     def step(self, batch):
    ...         x, y = batch
    ...         return F.mse_loss(self.model(x), y)
    >>> len(Line())
    2
    """

    model: nn.Module
    teacher: nn.Module | None = None
    optimizer: Any = None
    scheduler: Any = None
    #: The run that trains this module at present.
    _run: ModuleRun | None = None
    #: Names of further models, with those of their optimizers and schedules.
    _registered: tuple[tuple[str, str | None, str | None], ...] = ()
    _is_extended = False

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if cls._is_extended:
            return
        own = [name for name in _STEPS if getattr(cls, name) is not getattr(AcceleratorModule, name)]
        if cls.step is not AcceleratorModule.step and own:
            raise TypeError(
                f"{cls.__name__} defines step and {' and '.join(own)}: step is both the training and the validation "
                "step, so define either step alone or the others."
            )

    # ---- steps

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Loss of a batch, in training and in validation."""
        raise NotImplementedError(f"{type(self).__name__} must define step(batch), or training_step(batch).")

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Mean loss over a batch."""
        raise NotImplementedError(f"{type(self).__name__} must define step(batch), or training_step(batch).")

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Mean loss over a batch, or ``{"loss": loss, "<metric>": (predictions, references)}``."""
        raise NotImplementedError(
            f"{type(self).__name__} has no validation_step: define it, or fit without val_dataset."
        )

    def test_step(self, *args: object, **kwargs: object) -> Any:
        """As :meth:`validation_step`, for ``Trainer.evaluate``; where it is not defined, that one serves."""
        raise NotImplementedError(f"{type(self).__name__} has no test_step.")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What calling the module does: by default it calls the model."""
        return self.model(*args, **kwargs)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self.forward(*args, **kwargs)

    def before_eval(self) -> None:
        """Before an evaluation."""

    def after_eval(self) -> None:
        """After an evaluation."""

    @property
    def can_validate(self) -> bool:
        """Whether there is a step for validation."""
        names = ("validation_step",) if self._is_extended else ("step", "validation_step")
        return any(getattr(type(self), name) is not getattr(AcceleratorModule, name) for name in names)

    # ---- what may be one's own

    def collate_fn(self, batch: list[Any]) -> Any:
        """Makes a batch of samples; one's own comes before the Trainer's."""
        raise NotImplementedError

    def collate_fn_train(self, batch: list[Any]) -> Any:
        """The same in training only."""
        raise NotImplementedError

    def collate_fn_val(self, batch: list[Any]) -> Any:
        """The same in validation only."""
        raise NotImplementedError

    def get_optimizer(self) -> Any:
        """An optimizer of one's own."""
        return None

    def get_scheduler(self, optimizer: Optimizer, steps_per_epoch: int, epochs: int) -> Any:
        """A schedule of one's own; it moves with every optimizer step."""
        return None

    def get_train_dataloader(self, *args: object) -> Any:
        """A loader of one's own, where ``fit`` gets no data set, or for the one that it gets."""
        return None

    def get_validation_dataloader(self, *args: object) -> Any:
        """The same for validation; several by name in a dict."""
        return None

    # ---- in a run

    @property
    def status_dict(self) -> dict[str, Any]:
        """Where the run stands; empty outside one."""
        return {} if self._run is None else self._run.status

    @property
    def state(self) -> Any:
        """Where the run stands, in the names of later versions of ACCMT; None outside one."""
        return None if self._run is None else self._run.training_state

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        if self._run is not None:
            return self._run.device
        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))

    @property
    def accelerator(self) -> Any:
        """What scripts ask of an Accelerator: device, processes, gather."""
        return None if self._run is None else self._run.accelerator

    @property
    def log_every(self) -> int | None:
        """Optimizer steps between two logs."""
        return None if self._run is None else self._run.log_every

    def log(
        self,
        values: Mapping[str, Any],
        log_kwargs: Mapping[str, Any] | None = None,
        *,
        step: int | None = None,
        reduction: str = "mean",
        instant: bool = False,
    ) -> None:
        """Log ``values``: their means since the last log, of all processes; ``instant``: as they are, now."""
        if log_kwargs:
            raise ValueError(f"log_kwargs={dict(log_kwargs)} go to no tracker here: leave them out.")
        if step is not None or reduction != "mean":
            raise ValueError("self.log takes means at the present step: leave step and reduction out.")
        if self._run is None:
            raise ValueError(f"self.log() works while a Trainer runs this {type(self).__name__}, and none does.")
        self._run.log(values, instant=instant)

    def register(self, model: str, optimizer: str | None = None, scheduler: str | None = None) -> None:
        """Name an attribute that holds a further model, with its optimizer and schedule (names of attributes too).

        They are placed and saved with the run; an ``ExtendedAcceleratorModule`` steps them itself.
        """
        for kind, name in (("model", model), ("optimizer", optimizer), ("scheduler", scheduler)):
            if name is None and kind != "model":
                continue
            if not isinstance(name, str) or not hasattr(self, name):
                raise TypeError(f"register: {kind}={name!r} must be the name of an attribute.")
        self._registered = (*self._registered, (model, optimizer, scheduler))

    # ---- tools

    @classmethod
    def from_hf(cls, path: str, type: Any = None, **kwargs: Any) -> AcceleratorModule:
        """A module around transformers' ``type.from_pretrained(path, **kwargs)``, trained by the model's own loss."""
        import transformers

        refuse_unsafe_transformers()
        chosen = transformers.AutoModel if type is None else type
        if isinstance(chosen, str):
            if not hasattr(transformers, chosen):
                raise ValueError(f"transformers has no class {chosen!r}.")
            chosen = getattr(transformers, chosen)
        return PretrainedModule(chosen.from_pretrained(path, **kwargs))

    def freeze(self, module: nn.Module) -> None:
        """Train no parameter of ``module``."""
        module.requires_grad_(False)

    def unfreeze(self, module: nn.Module) -> None:
        """Train all parameters of ``module``."""
        module.requires_grad_(True)

    def pad(
        self,
        tensor: Any,
        value: float,
        padding: str | None = None,
        max_length: int | None = None,
        side: str = "right",
        op: str | Callable[..., Any] | None = None,
    ) -> Any:
        """``tensor``, or each of several, with its last dimension filled up with ``value``.

        Several are made as long as the longest, or ``max_length``; ``op`` ("stack", "cat" or a function) joins them.
        """
        if side not in ("left", "right"):
            raise ValueError(f"side={side!r} must be 'left' or 'right'.")
        if isinstance(tensor, Tensor):
            if max_length is None:
                raise ValueError("pad: one tensor needs max_length.")
            return _padded(tensor, value, max_length, side)
        if padding not in (None, "longest", "max_length") or (padding == "max_length" and max_length is None):
            raise ValueError("pad: padding is 'longest', or 'max_length' with max_length given.")
        longest = max(item.size(-1) if item.ndim else 1 for item in tensor)
        length = max_length if padding == "max_length" and max_length is not None else longest
        filled = [_padded(item, value, length, side) for item in tensor]
        if op is None:
            return type(tensor)(filled)
        return getattr(torch, op)(filled) if isinstance(op, str) else op(filled)

    def free_memory(self, *objects: object, clear_cache: bool = False, gc_collect: bool = False) -> None:
        """Collect what nobody holds any more, and give unused device memory back."""
        if gc_collect:
            gc.collect()
        if clear_cache and torch.cuda.is_available():
            torch.cuda.empty_cache()

    def reset_optimizer(self, optimizer: Any = None) -> None:
        """Forget what the optimizer has learnt of the gradients."""
        chosen = self.optimizer if optimizer is None else optimizer
        if chosen is None:
            raise ValueError("reset_optimizer: there is no optimizer before training begins.")
        chosen.state.clear()

    def __len__(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def __bool__(self) -> bool:
        # A model without parameters is a model all the same.
        return True

    def __str__(self) -> str:
        return repr(getattr(self, "model", None))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"


class ExtendedAcceleratorModule(AcceleratorModule):
    """A module whose ``training_step`` does everything itself; the loss it returns is only logged.

    Call ``backward(loss)``, then ``step_optimizer()`` and ``step_scheduler()`` (or ``step()`` for both) and
    ``zero_grad()``.
    """

    _is_extended = True

    def backward(self, loss: Tensor, **kwargs: object) -> None:
        """Gradients of ``loss``."""
        if kwargs:
            raise ValueError(f"backward takes the loss alone, not {sorted(kwargs)}.")
        self._running().backward(loss)

    def step_optimizer(self) -> None:
        self._running()
        self.optimizer.step()

    def step_scheduler(self) -> None:
        self._running()
        if self.scheduler is None:
            raise ValueError("step_scheduler: this training has no scheduler; name one in hps, or leave the call out.")
        self.scheduler.step()

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step the optimizer, then the schedule if there is one."""
        self.step_optimizer()
        if self.scheduler is not None:
            self.step_scheduler()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._running()
        self.optimizer.zero_grad(set_to_none=set_to_none)

    # ---- further models

    def additional_backward(self, model: nn.Module, loss: Tensor) -> None:
        """Gradients of a further model's ``loss``."""
        self._running().backward(loss)

    def additional_optimizer_step(self, optimizer: Any, **kwargs: Any) -> None:
        optimizer.step(**kwargs)

    def additional_optimizer_zero_grad(self, optimizer: Any, **kwargs: Any) -> None:
        optimizer.zero_grad(**kwargs)

    def additional_scheduler_step(self, scheduler: Any, **kwargs: object) -> None:
        scheduler.step(**kwargs)

    def _running(self) -> ModuleRun:
        if self._run is None:
            raise ValueError(f"{type(self).__name__} is not being trained: its optimizer is there once fit() runs.")
        return self._run


class PretrainedModule(AcceleratorModule):
    """A transformers model, trained by its own loss."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def training_step(self, batch: Any) -> Any:
        return self._loss(batch)

    def validation_step(self, batch: Any) -> Any:
        return self._loss(batch)

    def _loss(self, batch: object) -> Any:
        loss = getattr(self.model(**batch), "loss", None)
        if loss is None:
            raise ValueError(
                f"{type(self.model).__name__} returns no loss: name a class with a head, for instance "
                "('path', 'AutoModelForSequenceClassification'), and give it labels."
            )
        return loss


def _padded(tensor: Tensor, value: float, length: int, side: str) -> Tensor:
    tensor = tensor.reshape(1) if tensor.ndim == 0 else tensor
    missing = length - tensor.size(-1)
    if missing < 0:
        raise ValueError(f"pad makes tensors longer: this one has {tensor.size(-1)} and max_length is {length}.")
    return F.pad(tensor, (0, missing) if side == "right" else (missing, 0), value=value)


def attach_run(module: AcceleratorModule, run: ModuleRun) -> None:
    """From now on ``self.log`` and the like of ``module`` reach ``run``."""
    module._run = run


def registered_models(module: AcceleratorModule) -> tuple[tuple[str, str | None, str | None], ...]:
    """What was given to ``register``: the names of a model, its optimizer and its schedule."""
    return module._registered


def is_extended(module: AcceleratorModule) -> bool:
    """Whether it steps its optimizers itself."""
    return module._is_extended
