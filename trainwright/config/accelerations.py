"""The words of ``acceleration=``."""

from __future__ import annotations

#: What is used: what rules say and a proof confirms; nothing; all that goes with the training.
ACCELERATION_WORDS = ("auto", "off", "max")

#: Accelerations by name.
ACCELERATIONS = ("blocks", "logits", "clip", "padding")
