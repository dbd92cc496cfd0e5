"""Which frame of the stack a callback was called from."""

from __future__ import annotations

import sys
from types import FrameType


def call_stack() -> list[FrameType]:
    """Frames of this thread, outermost first."""
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def innermost_shared(earlier: list[FrameType], later: list[FrameType]) -> FrameType | None:
    """The frame that two events were both fired from: that of the loop around them."""
    shared = None
    for one, other in zip(earlier, later, strict=False):
        if one is not other:
            break
        shared = one
    return shared
