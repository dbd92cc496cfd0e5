"""What every acceleration is: whether it goes with a training, how it is put in, and how it is taken out again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from trainwright.engines.torch.acceleration.call import Call

#: Takes out what was put in.
Undo = Callable[[], None]


@dataclass(frozen=True)
class Situation:
    """What an acceleration may ask about a training before its first step."""

    #: The network itself, without what spreads it over processes.
    network: nn.Module
    engine: Any
    device: torch.device
    steps: int
    #: The network is given the labels, and its loss is what is trained on.
    loss_is_the_networks: bool
    #: Whether batches may differ in more than their number of samples, as those of texts do.
    lengths_vary: bool
    #: How the weights are spread: "sp", "ddp", "fsdp", ...
    layout: str
    #: Names of arguments that ask for something which stands in the way.
    settings: frozenset[str] = frozenset()
    #: What of the user's would see logits or gradients in the middle of a step.
    onlookers: tuple[str, ...] = ()
    #: A recipe changes the network, or its gradients, while it is trained.
    changes_network: bool = False
    #: Somebody asked for this acceleration by name: whether it pays is no question.
    is_asked_for: bool = False

    #: The share of what compiled blocks would keep for backward that they may keep.
    memory_budget: float | None = None

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.network.parameters())


class Technique(Protocol):
    """One way to be faster whose results are the same up to rounding."""

    name: str
    #: What it changes, for the log: "the blocks are compiled".
    says: str
    #: Whether results may differ in their last bits from those of a plain step.
    changes_bits: bool
    #: Whether code of the user's that looks into a step could see that it is used.
    is_visible: bool
    #: Whether it is compared with the plain way before the first step.
    is_proven: bool
    #: Whether its kernels are made for the shapes that it is first called with.
    is_compiled: bool
    #: Whether it brings so much on a CPU, too, that last bits may differ there.
    pays_on_cpu: bool

    def why_not(self, situation: Situation) -> str | None:
        """Why it does not go with this training, or None."""
        ...

    def why_not_for(self, call: Call) -> str | None:
        """Why it does not go with what the network is first called with, or None."""
        ...

    def install(self, situation: Situation) -> Undo:
        """Put it in."""
        ...
