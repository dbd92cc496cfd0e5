"""Modifiers that somebody wrote with SparseML's classes, as modifiers of ours."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from torch import Tensor, nn

from trainwright.compat.sparseml.classes.lifecycle import Modifier, ScheduledModifier
from trainwright.compat.sparseml.classes.texts import PYTORCH_FRAMEWORK, remember
from trainwright.config.registry import is_shipped, register
from trainwright.core.modifier import Modifier as NativeModifier
from trainwright.core.modifier import Site


class FromPython(NativeModifier):
    """Calls SparseML's methods of ``written`` at the moments of ours; its schedule is its own."""

    def __init__(self, written: Modifier) -> None:
        start, end = getattr(written, "start_epoch", -1.0), getattr(written, "end_epoch", -1.0)
        super().__init__(start_epoch=start, end_epoch=end)
        self.written = written
        #: What ``initialize`` is told besides the model.
        self.options: dict[str, Any] = {}
        self._site: Site | None = None
        self._at = 0.0

    def prepare_model(self, model: nn.Module) -> None:
        if not self.written.initialized:
            self.written.initialize(model, self._at, **self.options)

    def advance(self, site: Site, epoch: float) -> None:
        self._site, self._at = site, epoch
        one = self.written
        if not one.initialized:
            self.prepare_model(site.model)
        if not one.enabled:
            return
        arguments = (site.model, site.optimizer, epoch, site.steps_per_epoch)
        if not isinstance(one, ScheduledModifier):
            one.update(*arguments)
        elif one.update_ready(epoch, site.steps_per_epoch):
            one.scheduled_update(*arguments)
            if one.loggers_initialized:
                one.scheduled_log_update(*arguments)
        self.has_begun, self.has_ended = getattr(one, "started", True), getattr(one, "ended", False)

    def before_update(self, site: Site) -> None:
        if self.written.enabled:
            self.written.optimizer_pre_step(site.model, site.optimizer, self._at, site.steps_per_epoch)

    def after_update(self, site: Site) -> None:
        if self.written.enabled:
            self.written.optimizer_post_step(site.model, site.optimizer, self._at, site.steps_per_epoch)

    def finish_model(self, model: nn.Module) -> None:
        if self.written.initialized:
            self.written.finalize(model)

    def tensors_to_save(self) -> dict[str, Any]:
        return {name: value for name, value in self.written.state_dict().items() if isinstance(value, Tensor)}

    def values_to_save(self) -> dict[str, Any]:
        return {name: value for name, value in self.written.state_dict().items() if not isinstance(value, Tensor)}

    def load_saved(self, tensors: dict[str, Any], values: dict[str, Any]) -> None:
        if isinstance(self.written, ScheduledModifier):
            self.written.go_on(started=self.has_begun, ended=self.has_ended)
        self.written.load_state_dict({**tensors, **values})


class FromPythonWithLoss(FromPython):
    """The same for one that changes the loss."""

    def modify_loss(self, loss: Any, outputs: Any, inputs: Any) -> Any:
        site = self._site
        if site is None or not self.written.enabled:
            return loss
        return self.written.loss_update(
            loss,
            site.model,
            site.optimizer,
            self._at,
            site.steps_per_epoch,
            student_outputs=outputs,
            student_inputs=inputs,
        )


def acting(written: Modifier) -> NativeModifier:
    """The modifier of ours that does what ``written`` says."""
    changes_loss = type(written).loss_update is not Modifier.loss_update
    return (FromPythonWithLoss if changes_loss else FromPython)(written)


class ModifierYAML:
    """A decorator: recipes may name the class that it stands over."""

    #: Only classes for PyTorch train here.
    _trains: ClassVar[str] = PYTORCH_FRAMEWORK

    def __init__(self, framework: str, swap_class_by_state_fn: Any = None) -> None:
        if not framework:
            raise ValueError("framework must have a name, such as 'pytorch'.")
        if swap_class_by_state_fn is not None:
            raise ValueError("swap_class_by_state_fn= is not supported: give the other class a name of its own.")
        self._framework = framework

    def __call__(self, clazz: type) -> type:
        if (
            self._framework == self._trains
            and issubclass(clazz, Modifier)
            and not is_shipped("modifier", clazz.__name__)
        ):
            register("modifier", clazz.__name__)(_native_of(clazz))
        remember(self._framework, clazz)
        return clazz


class PyTorchModifierYAML(ModifierYAML):
    """The same for PyTorch."""

    def __init__(self, swap_class_by_state_fn: Any = None) -> None:
        super().__init__(PYTORCH_FRAMEWORK, swap_class_by_state_fn)


def _native_of(clazz: Any) -> type[FromPython]:
    """A class of ours whose constructor takes the arguments of ``clazz``."""
    base = FromPythonWithLoss if clazz.loss_update is not Modifier.loss_update else FromPython

    def construct(self: FromPython, **arguments: Any) -> None:
        FromPython.__init__(self, clazz(**arguments))

    made: Any = type(clazz.__name__, (base,), {"__init__": construct, "__module__": clazz.__module__})
    made.__qualname__ = clazz.__qualname__
    made.__signature__ = inspect.signature(clazz)
    return made
