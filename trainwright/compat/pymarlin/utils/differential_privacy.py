"""Differential privacy: the arguments exist so that a script says what it wants; training refuses them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class DifferentialPrivacyArguments:
    """What PyMarlin passed to Opacus."""

    noise_multiplier: float = 1.0
    per_sample_max_grad_norm: float = 1.0
    sample_rate: float = 0.0
    delta: float | None = None


def refuse_differential_privacy() -> None:
    """Say why, and what to use."""
    raise ValueError(
        "Differential privacy is not part of this door: noise has to be added per sample, inside the backward pass. "
        "Use opacus directly (PrivacyEngine.make_private) in a training loop of your own, and leave "
        "differential_privacy_args and the '-dp' backends out here."
    )
