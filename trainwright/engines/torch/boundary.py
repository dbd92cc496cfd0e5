"""The moment between two steps, kept so that a step that does not finish can be undone.

Until its update a step changes nothing but random states (those of the model's own generators too) and the buffers that
a forward pass writes (BatchNorm's running statistics), so this is all that has to be remembered: a few microseconds a
step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trainwright.core.draws import GeneratorStates
from trainwright.core.own_generators import OwnGenerators, States
from trainwright.engines.torch.randomness import as_stored, restore_torch, torch_states, with_own


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
        self._marks = 0
        for path, module in model.named_modules():
            for name, buffer in module.named_buffers(prefix=path, recurse=False):
                if getattr(module, "track_running_stats", False):
                    # Normalization kernels write these without counting it as a write.
                    self._protect(name, buffer)
                else:
                    self._others[name] = (buffer, buffer._version, buffer.detach().clone())

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
        if self._others:
            self._find_changing_buffers()
        if self._buffers:
            with torch.no_grad():
                torch._foreach_copy_(list(self._saved.values()), list(self._buffers.values()))

    def _protect(self, name: str, buffer: Tensor) -> None:
        self._buffers[name] = buffer
        self._saved[name] = buffer.detach().clone()

    def _find_changing_buffers(self) -> None:
        """What the first steps change, later ones will change too; the rest (masks, position tables) never does."""
        self._marks += 1
        for name, (buffer, version, _) in self._others.items():
            if buffer._version != version:
                self._protect(name, buffer)
        if self._marks > 3:
            self._others = {}

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
            for buffer, saved in self._changed().values():
                buffer.copy_(saved if where is None else torch.where(where > 0, saved, buffer))

    def _changed(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Buffers that a step may have changed since the mark, each with what it held then."""
        changed = {name: (buffer, self._saved[name]) for name, buffer in self._buffers.items()}
        for name, (buffer, version, saved) in self._others.items():
            if name not in changed and buffer._version != version:
                # Written for the first time, in the step that is being undone.
                changed[name] = (buffer, saved)
        return changed

    def changing(self) -> list[Tensor]:
        """Buffers that steps are known to change."""
        return list(self._buffers.values())

    def buffers(self) -> dict[str, Tensor]:
        """Buffers that steps change, as they were at the mark."""
        return {name: saved for name, (_, saved) in self._changed().items()}

    def random_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Random states at the mark, as a checkpoint stores them."""
        assert self._host is not None
        known = {path: state for path, state in self._own.items() if path in self.own.found}
        return with_own(as_stored(self._host.python, self._host.numpy, self._torch), self.own.to_json(known))
