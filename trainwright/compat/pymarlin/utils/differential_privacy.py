"""Differential privacy: its arguments, and the package that does it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass
class DifferentialPrivacyArguments:
    """What opacus is told; used with ``backend="sp-dp"``."""

    #: How much noise, in units of ``per_sample_max_grad_norm``.
    noise_multiplier: float = 1.0
    #: Every sample's gradient is clipped to this norm.
    per_sample_max_grad_norm: float = 1.0
    #: The samples of a step as a share of the dataset; the privacy that is spent is computed from it.
    sample_rate: float = 0.0
    #: For the user's own ``accountant.get_epsilon(delta)``.
    delta: float | None = None


class NoDPWrap:
    """Marks an optimizer that trains without differential privacy."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer


def import_opacus() -> Any:
    """The package; it is needed for differential privacy only."""
    try:
        importlib.import_module("opacus.accountants")
        importlib.import_module("opacus.optimizers")
        return importlib.import_module("opacus")
    except ImportError:
        raise ValueError("Differential privacy needs opacus (pip install opacus).") from None


def refuse_several_processes() -> None:
    """Say why, and what to use."""
    raise ValueError(
        "backend 'ddp-dp' is not here: opacus averages noise between processes in a wrapper of its own, which has not "
        "been tried with this loop. Use 'sp-dp', or opacus' PrivacyEngine in a loop of your own."
    )
