"""Freezing parameters, and giving them values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trainwright.core.modifier import Modifier, Site
from trainwright.recipes.pruning.sparsity import checked_interpolation, interpolate, progress_between
from trainwright.recipes.selecting import select_parameters


class _OfParameters(Modifier):
    """Knows which parameters it is about; a name that fits nothing is an error unless ``params_strict`` is False."""

    def __init__(
        self, *, params: Any, params_strict: bool, start_epoch: float, end_epoch: float, update_frequency: float = -1.0
    ) -> None:
        super().__init__(start_epoch=start_epoch, end_epoch=end_epoch, update_frequency=update_frequency)
        self.params, self.params_strict = params, params_strict

    def chosen(self, model: nn.Module) -> dict[str, nn.Parameter]:
        if self.params_strict:
            return select_parameters(model, self.params)
        found: dict[str, nn.Parameter] = {}
        for pattern in [self.params] if isinstance(self.params, str) else self.params:
            try:
                found |= select_parameters(model, pattern)
            except ValueError:
                continue
        return found

    def prepare_model(self, model: nn.Module) -> None:
        self.chosen(model)


class TrainableParamsModifier(_OfParameters):
    """Trains (``trainable=True``) or freezes parameters from start to end; then they are as they were before."""

    changes_graph = True

    def __init__(
        self,
        *,
        params: Any,
        trainable: bool,
        params_strict: bool = True,
        start_epoch: float = -1.0,
        end_epoch: float = -1.0,
        log_types: object = "__ALL__",
    ) -> None:
        super().__init__(params=params, params_strict=params_strict, start_epoch=start_epoch, end_epoch=end_epoch)
        self.trainable = bool(trainable)
        #: Whether each parameter was trained when this began; also what it goes back to.
        self._before: dict[str, bool] = {}

    def prepare_model(self, model: nn.Module) -> None:
        found = self.chosen(model)
        if not self._before:
            self._before = {name: parameter.requires_grad for name, parameter in found.items()}
        if self.trainable:
            # The optimizer takes only what is trained when it is made; before the start they are frozen again.
            for parameter in found.values():
                parameter.requires_grad_(True)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.site is not None and not self.has_begun:
            self._put_back(self.site)
        super().on_train_begin(args, state, control, **kwargs)

    def begin(self, site: Site, epoch: float) -> None:
        if not self._before:
            self.prepare_model(site.model)
        self._switch(site)

    def resume(self, site: Site, epoch: float) -> None:
        if self.is_active:
            self._switch(site)
        else:
            self._put_back(site)

    def end(self, site: Site, epoch: float) -> None:
        self._put_back(site)

    def finish_model(self, model: nn.Module) -> None:
        for name, parameter in self.chosen(model).items():
            parameter.requires_grad_(self._before.get(name, True))

    def _switch(self, site: Site) -> None:
        for parameter in self.chosen(site.model).values():
            parameter.requires_grad_(self.trainable)
            parameter.grad = None

    def _put_back(self, site: Site) -> None:
        for name, parameter in self.chosen(site.model).items():
            parameter.requires_grad_(self._before[name])

    def forget(self) -> None:
        super().forget()
        self._before = {}


class SetParamModifier(_OfParameters):
    """Writes ``val`` into parameters when ``start_epoch`` comes."""

    def __init__(
        self,
        *,
        params: Any,
        val: Any,
        params_strict: bool = True,
        start_epoch: float = -1.0,
        end_epoch: float = -1.0,
        constant_logging: bool = False,
        log_types: object = "__ALL__",
    ) -> None:
        super().__init__(params=params, params_strict=params_strict, start_epoch=start_epoch, end_epoch=end_epoch)
        self.val = val

    def begin(self, site: Site, epoch: float) -> None:
        for name, parameter in self.chosen(site.model).items():
            _write(name, parameter, self.val)


class GradualParamModifier(_OfParameters):
    """Moves the values of parameters from ``init_val`` to ``final_val``."""

    def __init__(
        self,
        *,
        params: Any,
        init_val: Any,
        final_val: Any,
        start_epoch: float,
        end_epoch: float,
        update_frequency: float = -1.0,
        params_strict: bool = True,
        inter_func: str = "linear",
        log_types: object = "__ALL__",
    ) -> None:
        super().__init__(
            params=params,
            params_strict=params_strict,
            start_epoch=start_epoch,
            end_epoch=end_epoch,
            update_frequency=update_frequency,
        )
        if self.end_epoch == -1:
            raise ValueError("end_epoch must say when final_val is reached; it cannot be -1.")
        self.inter_func = checked_interpolation(inter_func)
        self.init_val, self.final_val = _tensor("init_val", init_val), _tensor("final_val", final_val)
        if self.init_val.shape != self.final_val.shape:
            raise ValueError("init_val and final_val must have the same shape.")

    def update(self, site: Site, epoch: float) -> None:
        share = progress_between(epoch, self.start_epoch, self.end_epoch)
        value = self.init_val + (self.final_val - self.init_val) * interpolate(share, 0.0, 1.0, self.inter_func)
        for name, parameter in self.chosen(site.model).items():
            _write(name, parameter, value)


def _tensor(name: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name} must be a number or a list of numbers, not {value!r}.") from None


def _write(name: str, parameter: nn.Parameter, value: Any) -> None:
    given = _tensor("val", value)
    if given.ndim and given.shape != parameter.shape:
        raise ValueError(f"{name} has shape {tuple(parameter.shape)}, the value {tuple(given.shape)}.")
    with torch.no_grad():
        parameter.copy_(given.to(parameter.device, parameter.dtype).expand_as(parameter))
