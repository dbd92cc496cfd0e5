"""Modifiers in a training loop written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from trainwright.core.modifier import Modifier, Site
from trainwright.recipes.pruning.optimizer_state import replace_parameters


class ManualLoop:
    """Calls modifiers at the right moments of somebody's own loop.

    >>> import torch
    >>> from trainwright.recipes.pruning.magnitude import MagnitudePruningModifier
    >>> model = nn.Linear(10, 10)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> half = MagnitudePruningModifier(
    ...     params="__ALL_PRUNABLE__", init_sparsity=0.0, final_sparsity=0.5, start_epoch=0, end_epoch=1
    ... )
    >>> drive = ManualLoop([half], model, optimizer, steps_per_epoch=4)
    >>> for step in range(4):
    ...     loss = model(torch.randn(2, 10)).square().mean()
    ...     drive.loss(loss).backward()
    ...     drive.step()
    ...     optimizer.zero_grad()
    >>> drive.finish()
    >>> int((model.weight == 0).sum())
    50
    """

    def __init__(
        self,
        modifiers: list[Modifier],
        model: nn.Module,
        optimizer: Any,
        steps_per_epoch: float,
        *,
        epoch: float = 0.0,
        gradients: Callable[[int], Iterator[None]] | None = None,
        called: nn.Module | None = None,
    ) -> None:
        """``called`` is what the loop calls where that is not ``model`` itself but around it: compiled, say."""
        self.modifiers = modifiers
        self.steps = round(epoch * steps_per_epoch)
        self.site = Site(model, optimizer, steps_per_epoch, gradients=gradients, rebuild=self._rebuild)
        for modifier in modifiers:
            modifier.prepare_model(model)
            extra = list(modifier.extra_parameters().values())
            if extra and optimizer is not None:
                optimizer.add_param_group({"params": extra})
        self._has_started = False
        # What is due at the start changes weights, so it must come before a loss is computed with them.
        self._first_forward = (model if called is None else called).register_forward_pre_hook(self._start_with)

    @property
    def epoch(self) -> float:
        """Where the loop stands."""
        return self.steps / self.site.steps_per_epoch

    def start(self) -> None:
        """What is due before the first step; the model's first forward in training mode sees to it."""
        if self._has_started:
            return
        self._has_started = True
        self._first_forward.remove()
        for modifier in self.modifiers:
            if modifier.has_begun:
                modifier.resume(self.site, self.epoch)
            modifier.advance(self.site, self.epoch)

    def _start_with(self, model: nn.Module, inputs: object) -> None:
        if model.training:
            self.start()

    def _rebuild(self, mapping: dict[Any, tuple[Any, Callable[[Any], Any] | None]]) -> None:
        replace_parameters(self.site.optimizer, mapping)
        for modifier in self.modifiers:
            modifier.replaced(mapping)

    def loss(self, loss: Tensor, outputs: object = None, inputs: object = None) -> Any:
        """``loss`` as the modifiers want it, before ``backward``."""
        self.start()
        for modifier in self.modifiers:
            loss = modifier.modify_loss(loss, outputs, inputs)
        return loss

    def step(self, update: Callable[[], Any] | None = None) -> Any:
        """One optimizer step (or ``update()``, a GradScaler's say), with what comes before and after it."""
        self.start()
        for method in ("shape_gradients", "before_update"):
            for modifier in self.modifiers:
                getattr(modifier, method)(self.site)
        answer = (update or self.site.optimizer.step)()
        for modifier in self.modifiers:
            modifier.after_update(self.site)
        self.steps += 1
        for modifier in self.modifiers:
            modifier.advance(self.site, self.epoch)
        return answer

    def finish(self) -> None:
        """The training is over."""
        for modifier in self.modifiers:
            modifier.finish_model(self.site.model)
