"""The moment between two steps, kept so that a step that does not finish can be undone.

Until its update a step changes nothing but random states (those of the model's own generators too), the buffers that
a forward pass writes (BatchNorm's running statistics) and, in some models, parameters that it writes by itself
(codebooks, copies that slowly follow the weights). So this is all that has to be remembered: a few microseconds a step.
What a model writes shows in its first steps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trainwright.core.dtensors import is_dtensor
from trainwright.engines.torch.randomness import as_stored, restore_torch, torch_states, with_own
from trainwright.engines.torch.samples import Whole, whole
from trainwright.randomness.global_generators import GeneratorStates
from trainwright.randomness.own_generators import OwnGenerators, States

#: Steps in which contents are compared, which waits for the device. Later, only writes that torch counts are seen.
_COMPARED_STEPS = 2
#: A buffer that the first steps leave alone and that is larger (a mask, a table) is not kept any longer.
_LARGEST_KEPT = 16 * 2**20


class Unchanged(NamedTuple):
    """A buffer where it hangs, with the number of writes to it so far and what it holds."""

    place: dict[str, Tensor | None]
    attribute: str
    buffer: Tensor
    version: int
    held: Tensor


class Boundary:
    """Marks the state before each step, and goes back to it."""

    def __init__(self, model: nn.Module, own: OwnGenerators | None = None, *, looks_at_parameters: bool = True) -> None:
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
        #: Buffers that no step has changed so far.
        self._others: dict[str, Unchanged] = {}
        #: Where each buffer hangs, and those that steps replace by another tensor instead of writing into them.
        self._holders: dict[str, tuple[nn.Module, str]] = {}
        self._replaced: dict[str, tuple[nn.Module, str]] = {}
        self._marks = 0
        parameters = model.named_parameters() if looks_at_parameters else ()
        self._parameters = {name: p for name, p in parameters if not is_dtensor(p) and p.layout is torch.strided}
        self._sums: dict[str, Whole] = {}
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
            self._others = {name: _noted(*holder) for name, holder in self._holders.items()}
        elif self._others:
            self._follow_what_changed()
        self.is_looking, self._sums = self._marks < _COMPARED_STEPS, {}
        self._marks += 1
        if self._buffers:
            with torch.no_grad():
                torch._foreach_copy_([self._saved[name] for name in self._buffers], list(self._buffers.values()))
        if self._replaced:
            self._saved |= {name: held.detach().clone() for name, held in self._present(self._replaced)}

    def _protect(self, name: str, tensor: Tensor, saved: Tensor | None = None) -> None:
        self._buffers[name] = tensor
        self._saved[name] = tensor.detach().clone() if saved is None else saved

    def _follow_what_changed(self) -> None:
        """From now on keep, at every mark, the buffers that the step before was the first to change."""
        # Most are masks and tables, and never change: they cost no call.
        found = [
            (name, kept.buffer, kept.place.get(kept.attribute) is not kept.buffer)
            for name, kept in self._others.items()
            if kept.place.get(kept.attribute) is not kept.buffer or kept.buffer._version != kept.version
        ]
        for name, buffer, is_replaced in found:
            del self._others[name]
            if is_replaced:
                self._buffers.pop(name, None)
                self._replaced[name] = self._holders[name]
            elif name not in self._saved:
                self._protect(name, buffer)
        if self._marks == _COMPARED_STEPS:
            self._others = {n: kept for n, kept in self._others.items() if kept.held.nbytes <= _LARGEST_KEPT}

    def look(self) -> None:
        """Before a forward pass of the first steps: see what the parameters are."""
        if not self._sums:
            self._sums = {name: whole(p) for name, p in self._parameters.items()}

    def written(self) -> list[str]:
        """Names of what the step under way has written, also what torch does not count (through ``.data``)."""
        found = [name for name in self._others if name not in self._saved and self._is_written(name)]
        return found + [name for name, seen in self._sums.items() if not seen.matches(self._parameters[name])]

    def _is_written(self, name: str, *, compare: bool = True) -> bool:
        """Return True if a buffer is not what it was at the mark; to ``compare`` its contents waits for the device."""
        kept = self._others[name]
        is_counted = self._is_replaced(name) or kept.buffer._version != kept.version
        # In later steps a write that was not counted may be older than the mark.
        return is_counted or (compare and self.is_looking and not torch.equal(kept.buffer, kept.held))

    def _is_replaced(self, name: str) -> bool:
        kept = self._others[name]
        return kept.place.get(kept.attribute) is not kept.buffer

    def _present(self, holders: dict[str, tuple[nn.Module, str]]) -> list[tuple[str, Tensor]]:
        found = [(name, module._buffers.get(attribute)) for name, (module, attribute) in holders.items()]
        return [(name, buffer) for name, buffer in found if buffer is not None]

    def protect(self, names: list[str]) -> None:
        """Keep these from the next mark on: steps are known to write them."""
        for name in names:
            if name in self._parameters:
                self.written_parameters.add(name)
                self._protect(name, self._parameters[name])
            elif name in self._others and name not in self._saved:
                kept = self._others[name]
                if self._is_replaced(name):
                    self._replaced[name], self._saved[name] = self._holders[name], kept.held.clone()
                else:
                    self._protect(name, kept.buffer, kept.held.clone())

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
                if buffer is None or buffer.shape != saved.shape:
                    if where is None:
                        module, attribute = self._holders[name]
                        module._buffers[attribute] = saved.clone()
                else:
                    buffer.copy_(saved if where is None else torch.where(where > 0, saved, buffer))

    def _changed(self, *, compare: bool = True) -> dict[str, tuple[Tensor | None, Tensor]]:
        """Buffers that a step may have changed since the mark, each with what it held then."""
        changed: dict[str, tuple[Tensor | None, Tensor]]
        changed = {name: (buffer, self._saved[name]) for name, buffer in self._buffers.items()}
        for name, (module, attribute) in self._replaced.items():
            if name in self._saved:
                changed[name] = (module._buffers.get(attribute), self._saved[name])
        for name, kept in self._others.items():
            if name not in changed and self._is_written(name, compare=compare):
                # For the first time, in the step that is being undone.
                changed[name] = (kept.place.get(kept.attribute), kept.held)
        return changed

    def changing(self) -> list[Tensor]:
        """Buffers that steps are known to change."""
        return [*self._buffers.values(), *(buffer for _, buffer in self._present(self._replaced))]

    def buffers(self) -> dict[str, Tensor]:
        """Buffers that steps change, as they were at the mark."""
        return {name: saved for name, (_, saved) in self._changed().items()}

    def random_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Random states at the mark, as a checkpoint stores them."""
        assert self._host is not None
        known = {path: state for path, state in self._own.items() if path in self.own.found}
        return with_own(as_stored(self._host.python, self._host.numpy, self._torch), self.own.to_json(known))


def _noted(module: nn.Module, attribute: str) -> Unchanged:
    buffer = module._buffers[attribute]
    assert buffer is not None
    return Unchanged(module._buffers, attribute, buffer, buffer._version, buffer.detach().clone())
