"""Gradients are clipped by the kernel that updates the weights, not in a pass of their own."""

from __future__ import annotations

from trainwright.engines.torch.acceleration.call import Call
from trainwright.engines.torch.acceleration.technique import Situation, Undo


class ClipInUpdate:
    name = "clip"
    says = "gradients are clipped by the update's kernel"
    changes_bits = True
    is_visible = True
    #: The same product in another place; there is no forward pass to compare.
    is_proven = False
    is_compiled = False
    pays_on_cpu = False

    def why_not(self, situation: Situation) -> str | None:
        if situation.engine.max_grad_norm <= 0:
            return "max_grad_norm is 0"
        return situation.engine.why_not_clip_in_update()

    def why_not_for(self, call: Call) -> str | None:
        return None

    def install(self, situation: Situation) -> Undo:
        engine = situation.engine
        engine.clips_in_update = True

        def undo() -> None:
            engine.clips_in_update = False

        return undo
