"""The moment between two steps, kept so that a step that does not finish can be undone.

Until its update a step changes nothing but random states (those of the model's own generators too), the buffers that
a forward pass writes (BatchNorm's running statistics) and, in some models, parameters that it writes by itself
(codebooks, copies that slowly follow the weights). So this is all that has to be remembered: a few microseconds a step.
What a model writes shows in its first steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trainwright.core.draws import GeneratorStates
from trainwright.core.own_generators import OwnGenerators, States
from trainwright.core.spread import is_spread
from trainwright.engines.torch.randomness import as_stored, restore_torch, torch_states, with_own
from trainwright.engines.torch.samples import Sample, sample

#: Steps in which contents are compared, which waits for the device; writes that torch counts are looked at once more.
_COMPARED_STEPS = 2
_COUNTED_STEPS = 3


class Boundary:
    """Marks the state before each step, and goes back to it."""

    def __init__(self, model: nn.Module, own: OwnGenerators | None = None) -> None:
        #: Off where nothing will be saved: buffers are still needed, for steps that are not finite.
        self.keeps_random = True
        self._generators = GeneratorStates()
        self._host: Any = None
        self._torch: dict[str, Tensor] = {}
        #: Generators that users' objects draw from in a step.
        self.own = own or OwnGenerators()
        self._own: States = {}
        #: The first step may make generators that were not there before it.
        self._marks_until_look = 2
        self._buffers: dict[str, Tensor] = {}
        self._saved: dict[str, Tensor] = {}
        #: Buffers that may turn out to change, with the number of writes to them so far and what they hold.
        self._others: dict[str, tuple[Tensor, int, Tensor]] = {}
        #: Where each buffer hangs, and those that steps replace by another tensor instead of writing into them.
        self._holders: dict[str, tuple[nn.Module, str]] = {}
        self._replaced: dict[str, tuple[nn.Module, str]] = {}
        self._marks = 0
        self._parameters = {name: p for name, p in model.named_parameters() if not is_spread(p)}
        self._samples: dict[str, Sample] = {}
        #: True in the first steps, in which it shows what the model writes.
        self.is_looking = True
        #: Parameters that the model writes in its forward pass.
        self.written_parameters: set[str] = set()
        for path, module in model.named_modules():
            for name, buffer in module.named_buffers(prefix=path, recurse=False):
                if getattr(module, "track_running_stats", False):
                    # Normalization kernels write these without counting it as a write.
                    self._protect(name, buffer)
                else:
                    self._holders[name] = (module, name.rpartition(".")[2])

    def mark(self) -> None:
        """Remember this moment."""
        if self._marks_until_look:
            self._marks_until_look -= 1
            if not self._marks_until_look:
                self.own.look_for_late_ones()
        if self.keeps_random:
            self._host = self._generators.capture()
            self._torch = torch_states()
            if self.own.found:
                self._own = self.own.capture()
        if self._marks == 0:
            self._others = {name: _noted(_hanging(holder)) for name, holder in self._holders.items()}
        elif self._others:
            self._forget_what_never_changes()
        self.is_looking, self._samples = self._marks < _COMPARED_STEPS, {}
        self._marks += 1
        if self._buffers:
            with torch.no_grad():
                torch._foreach_copy_([self._saved[name] for name in self._buffers], list(self._buffers.values()))
        if self._replaced:
            self._saved |= {name: _hanging(holder).detach().clone() for name, holder in self._replaced.items()}

    def _protect(self, name: str, tensor: Tensor, saved: Tensor | None = None) -> None:
        self._buffers[name] = tensor
        self._saved[name] = tensor.detach().clone() if saved is None else saved

    def _forget_what_never_changes(self) -> None:
        """Masks and position tables; what the first steps change, later ones will change too."""
        for name, (buffer, version, _) in self._others.items():
            if buffer._version != version:
                self._protect(name, buffer)
        if self._marks >= _COUNTED_STEPS:
            self._others = {}

    def look(self) -> None:
        """Before a forward pass of the first steps: see what the parameters are."""
        if not self._samples:
            self._samples = {name: sample(p, self._marks) for name, p in self._parameters.items()}

    def written(self) -> list[str]:
        """Names of what the step under way has written, also what torch does not count (through ``.data``)."""
        found = [name for name in self._others if name not in self._saved and self._is_written(name)]
        return found + [name for name, seen in self._samples.items() if not seen.matches(self._parameters[name])]

    def _is_written(self, name: str, *, compare: bool = True) -> bool:
        """Return True if a buffer is not what it was at the mark; to ``compare`` its contents waits for the device."""
        buffer, version, saved = self._others[name]
        is_counted = self._is_replaced(name) or buffer._version != version
        return is_counted or (compare and not torch.equal(buffer, saved))

    def _is_replaced(self, name: str) -> bool:
        return _hanging(self._holders[name]) is not self._others[name][0]

    def protect(self, names: list[str]) -> None:
        """Keep these from the next mark on: steps are known to write them."""
        for name in names:
            if name in self._parameters:
                self.written_parameters.add(name)
                self._protect(name, self._parameters[name])
            elif name in self._others and name not in self._saved:
                buffer, _, saved = self._others[name]
                if self._is_replaced(name):
                    self._replaced[name], self._saved[name] = self._holders[name], saved.clone()
                else:
                    self._protect(name, buffer, saved.clone())

    def roll_back(self) -> None:
        """Random states and buffers as they were at the mark."""
        self.restore_random()
        self.restore_buffers()

    def restore_random(self) -> None:
        if self._host is not None:
            self._generators.restore(self._host)
            restore_torch(self._torch)
            if self._own:
                self.own.restore(self._own)

    def restore_buffers(self, where: Tensor | None = None) -> None:
        """Buffers as they were at the mark; with ``where``, only if it is true, which only the device knows."""
        with torch.no_grad():
            # Where the device decides, the step came so far that what it has written is known.
            for name, (buffer, saved) in self._changed(compare=where is None).items():
                if buffer.shape != saved.shape and where is None:
                    module, attribute = self._holders[name]
                    module._buffers[attribute] = saved.clone()
                elif buffer.shape == saved.shape:
                    buffer.copy_(saved if where is None else torch.where(where > 0, saved, buffer))

    def _changed(self, *, compare: bool = True) -> dict[str, tuple[Tensor, Tensor]]:
        """Buffers that a step may have changed since the mark, each with what it held then."""
        changed = {name: (buffer, self._saved[name]) for name, buffer in self._buffers.items()}
        changed |= {name: (_hanging(holder), self._saved[name]) for name, holder in self._replaced.items()}
        for name, (_, _, saved) in self._others.items():
            if name not in changed and self._is_written(name, compare=compare):
                # For the first time, in the step that is being undone.
                changed[name] = (_hanging(self._holders[name]), saved)
        return changed

    def changing(self) -> list[Tensor]:
        """Buffers that steps are known to change."""
        return [*self._buffers.values(), *map(_hanging, self._replaced.values())]

    def buffers(self) -> dict[str, Tensor]:
        """Buffers that steps change, as they were at the mark."""
        return {name: saved for name, (_, saved) in self._changed().items()}

    def random_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Random states at the mark, as a checkpoint stores them."""
        assert self._host is not None
        known = {path: state for path, state in self._own.items() if path in self.own.found}
        return with_own(as_stored(self._host.python, self._host.numpy, self._torch), self.own.to_json(known))


def _noted(buffer: Tensor) -> tuple[Tensor, int, Tensor]:
    return buffer, buffer._version, buffer.detach().clone()


def _hanging(holder: tuple[nn.Module, str]) -> Tensor:
    """The buffer that a module has at present."""
    module, name = holder
    buffer = module._buffers[name]
    assert buffer is not None
    return buffer
