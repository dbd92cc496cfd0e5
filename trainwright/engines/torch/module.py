"""Module: a training task of one's own, as a class with step methods; any Trainer runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from trainwright.core.module import StepPlan
from trainwright.engines.torch.split_batch import cut_batch
from trainwright.engines.torch.targets import TargetCounter


class ModuleRun(Protocol):
    """What a Module reaches of the Trainer that runs it."""

    def log(self, name: str, value: object, weight: object = None) -> None: ...
    def backward(self, loss: Tensor) -> None: ...
    def optimizers(self) -> list[Any]: ...
    def schedulers(self) -> list[Any]: ...


class Module(nn.Module):
    """A network together with how it is trained, validated and optimized.

    Define :meth:`training_step`; everything else has a default. Layers are attributes; where one attribute ``model``
    holds them all, checkpoints and ``save_model`` hold that model, so a transformers model inside can be read by
    ``from_pretrained``. Any event of a callback (``on_epoch_end``, ``on_log``, ...) may be a method too, with the
    callback's signature ``(self, args, state, control, **kwargs)``.

    >>> from trainwright import Module, Trainer, TrainingArguments
    >>> class Line(Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.model = nn.Linear(1, 1)
    ...     def training_step(self, batch):
    ...         x, y = batch
    ...         return nn.functional.mse_loss(self.model(x), y)
    >>> data = [(torch.tensor([x]), torch.tensor([2 * x])) for x in (0.0, 1.0, 2.0, 3.0)]
    >>> args = TrainingArguments("runs/line", max_steps=2, save_strategy="no", disable_tqdm=True)
    >>> Trainer(args=args).fit(Line(), data).global_step  # doctest: +ELLIPSIS
    {'train_runtime': ...}
    2
    """

    #: False: ``training_step`` steps its optimizers itself (see :meth:`optimizers` and :meth:`backward`).
    automatic_optimization: bool = True
    #: True while a validation step runs only because processes that hold parts of the model must stay in step: a module
    #: that counts something by itself leaves it out then.
    is_idle: bool = False
    _module_run: ModuleRun | None = None
    _counter: TargetCounter | None = None

    # ---- steps

    def training_step(self, batch: Any) -> Any:
        """Mean loss over the targets of ``batch``: a scalar, a dict with "loss", or a tuple that begins with it.

        The batch is on the device. The Trainer computes gradients, weighted by the batch's share of the step's targets.
        """
        raise NotImplementedError(f"{type(self).__name__} must define training_step(self, batch), returning the loss.")

    def validation_step(self, batch: Any) -> Any:
        """What evaluation learns of ``batch``; by default what :meth:`training_step` returns.

        None; the mean loss; a dict with any of "loss", "labels" (else those of the batch) and predictions under other
        names; or a tuple (loss, *predictions).
        """
        return self.training_step(batch)

    def test_step(self, batch: object) -> Any:
        """The same for ``trainer.test()``; by default :meth:`validation_step`."""
        return self.validation_step(batch)

    def predict_step(self, batch: object) -> Any:
        """Predictions of ``trainer.predict()``; by default this module, called with the inputs without labels."""
        if isinstance(batch, Mapping):
            return self(**{name: value for name, value in batch.items() if name != "labels"})
        if isinstance(batch, (tuple, list)):
            return self(*(batch[:-1] if len(batch) > 1 else batch))
        return self(batch)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls ``self.model``; define it where the module has none, or to do otherwise."""
        network = self._main_model()
        if network is None:
            raise NotImplementedError(
                f"{type(self).__name__} has no self.model to call: define forward(), or the step method that needs it."
            )
        return network(*args, **kwargs)

    # ---- optimization

    def configure_optimizers(self, plan: StepPlan) -> Any:
        """Optimizers and schedules; None (the default) for those that the arguments describe.

        An optimizer, a list of them, ``(optimizer, schedule)``, ``([optimizers], [schedules])`` or ``{"optimizer": ...,
        "lr_scheduler": ...}``. A schedule moves with every optimizer step; ``{"scheduler": s, "interval": "epoch"}``
        moves with every epoch. ``plan`` says how long the training is; the argument may be left out.
        """
        return None

    def parameter_groups(self, args: object) -> list[dict[str, Any]] | None:
        """Parameter groups for the optimizer that the arguments describe; None for the usual ones."""
        return None

    def optimizers(self) -> list[Any]:
        """The optimizers, in the order of :meth:`configure_optimizers`, for a ``training_step`` that steps them."""
        return self._running("optimizers").optimizers()

    def schedulers(self) -> list[Any]:
        """The schedules, in the order of :meth:`configure_optimizers`."""
        return self._running("schedulers").schedulers()

    def backward(self, loss: Tensor) -> None:
        """Gradients of ``loss``, with ``automatic_optimization = False``."""
        if self.automatic_optimization:
            raise ValueError(
                "self.backward() is for automatic_optimization = False; otherwise return the loss from training_step, "
                "and the Trainer computes its gradients."
            )
        self._running("backward").backward(loss)

    def after_backward(self, loss: Tensor) -> None:
        """After each micro-batch's backward pass; ``loss`` is its share of the step's loss, detached."""

    def on_step_redo(self) -> None:
        """What ``training_step`` collected does not count: the step is done again in smaller pieces, or was a try."""

    # ---- data

    def train_dataloader(self) -> Any:
        """A loader or dataset to train on, where ``fit`` or the Trainer got none."""
        return None

    def val_dataloader(self) -> Any:
        """A loader or dataset to validate on, or a dict of several by name."""
        return None

    def test_dataloader(self) -> Any:
        """A loader or dataset for ``trainer.test()``, or a dict of several by name."""
        return None

    def predict_dataloader(self) -> Any:
        """A loader or dataset for ``trainer.predict()``."""
        return None

    def count_targets(self, batch: Any) -> int | Tensor | None:
        """What the mean loss of ``batch`` is taken over: labels that are not -100, else samples. None: unknown."""
        if self._counter is None:
            self._counter = TargetCounter(self)
        return self._counter(batch)

    def split_batch(self, batch: object, parts: int) -> list[Any]:
        """``batch`` in ``parts`` pieces, for batches that do not fit into memory."""
        return cut_batch(batch, parts)

    # ---- values and state

    def log(self, name: str, value: object, weight: object = None) -> None:
        """Log ``value``: in training its mean since the last log, in evaluation ``eval_<name>``, the mean over the set.

        Each batch counts by its targets, or by ``weight``, so that the mean does not depend on how the data is cut.
        """
        self._running("log").log(name, value, weight)

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint keeps besides weights: nested dicts and lists of tensors and plain values."""
        return {}

    def update_state(self, state: dict[str, Any]) -> None:
        """Take up what :meth:`get_state` returned when the checkpoint was saved."""

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        for tensor in (*self.parameters(), *self.buffers()):
            return tensor.device
        return torch.device("cpu")

    def _running(self, what: str) -> ModuleRun:
        if self._module_run is None:
            raise ValueError(f"self.{what}() works while a Trainer runs this {type(self).__name__}, and none does.")
        return self._module_run

    def _main_model(self) -> nn.Module | None:
        """``self.model``, where there is one."""
        found = getattr(self, "model", None)
        return found if isinstance(found, nn.Module) else None

    def _stored_model(self) -> nn.Module:
        """What checkpoints hold: ``self.model`` where it has all parameters and buffers, else this module."""
        inner = self._main_model()
        if inner is None:
            return self
        held = {id(tensor) for tensor in (*inner.parameters(), *inner.buffers())}
        return inner if all(id(tensor) in held for tensor in (*self.parameters(), *self.buffers())) else self


def loss_in(outputs: object) -> Tensor | None:
    """The loss among what a step method returned, if there is one."""
    if isinstance(outputs, Mapping):
        outputs = outputs.get("loss")
    elif isinstance(outputs, (tuple, list)):
        outputs = outputs[0] if outputs else None
    return outputs if isinstance(outputs, Tensor) else None


def module_in(model: Any) -> Module | None:
    """The Module that is ``model``, or that a wrapper (torch.compile, DistributedDataParallel) holds."""
    while model is not None and not isinstance(model, Module):
        model = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
    return model


def main_model(model: nn.Module) -> nn.Module:
    """``self.model`` of a Module that has one; any other model as it is."""
    module = model if isinstance(model, Module) else None
    return (module._main_model() if module is not None else None) or model


def attach_run(module: Module, run: ModuleRun | None) -> None:
    """From now on ``self.log`` and the like of ``module`` reach ``run``."""
    if run is not module._module_run:
        module._module_run, module._counter = run, None
