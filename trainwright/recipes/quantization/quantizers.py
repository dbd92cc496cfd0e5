"""What a quantized layer has: one quantizer for its weights, others for what goes in and comes out.

Nothing of them is in the model's state dict: weights keep their names, and files load into a plain model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainwright.recipes.quantization.rounding import (
    Grid,
    blocks_of_activation,
    blocks_of_weight,
    grid_of,
    grid_of_range,
    require_torchao,
    rounded,
)
from trainwright.recipes.quantization.schemes import Rule
from trainwright.recipes.recomputing import is_recomputing


class WeightQuantizer(nn.Module):
    """Rounds weights to the grid that covers them, or to one that was fixed; dimension 0 are the outputs.

    >>> from trainwright.recipes.quantization.schemes import Rule
    >>> quantizer = WeightQuantizer(Rule(num_bits=2, symmetric=True, strategy="channel"))
    >>> quantizer(torch.tensor([[1.5, -0.4, 0.0]]))
    tensor([[1., 0., 0.]])
    """

    scale: Tensor | None
    zero_point: Tensor | None

    def __init__(self, rule: Rule) -> None:
        super().__init__()
        require_torchao()
        self.rule = rule
        self.register_buffer("scale", None, persistent=False)
        self.register_buffer("zero_point", None, persistent=False)

    def grid(self, weight: Tensor) -> Grid:
        """Scale and zero point for ``weight``."""
        blocks = blocks_of_weight(self.rule, weight)
        if self.scale is not None and self.zero_point is not None:
            count = weight.numel() // torch.Size(blocks).numel()
            # Thinning may have made the layer smaller since.
            if self.scale.numel() == count:
                return self.scale, self.zero_point
        scale, zero = grid_of(weight, self.rule, blocks)
        # What a file in the weights' own format can hold.
        narrow = scale.to(weight.dtype).float() if weight.dtype in (torch.float16, torch.bfloat16) else scale
        return narrow, zero

    def fix(self, weight: Tensor) -> None:
        """Keep the grid of today's weights."""
        self.scale = self.zero_point = None
        self.scale, self.zero_point = self.grid(weight)

    def forward(self, weight: Tensor) -> Tensor:
        return rounded(weight, self.rule, self.grid(weight), blocks_of_weight(self.rule, weight))


class ActivationQuantizer(nn.Module):
    """Rounds what goes through a layer; the range is a moving average over training batches.

    Where ``rule.dynamic`` is set, each tensor (or token) has a grid of its own instead. Before the first batch nothing
    is rounded.
    """

    low: Tensor
    high: Tensor
    #: Steps write these buffers, as they do those of batch normalization: an undone step must put them back.
    track_running_stats = True

    def __init__(self, rule: Rule, device: torch.device | None = None, *, by_sample: bool = False) -> None:
        super().__init__()
        require_torchao()
        self.rule = rule
        #: A token is one sample: convolutions have no other.
        self.by_sample = by_sample
        self.is_observing = False
        if not rule.dynamic:
            self.register_buffer("low", torch.full((), torch.inf, device=device), persistent=False)
            self.register_buffer("high", torch.full((), -torch.inf, device=device), persistent=False)

    @torch.no_grad()
    def observe(self, values: Tensor) -> None:
        """Move the range towards that of ``values``."""
        if values.numel() == 0:
            return
        low, high = torch.aminmax(values.detach().float())
        share = self.rule.averaging_constant
        is_first = self.low > self.high
        self.low.copy_(torch.where(is_first, low, self.low + share * (low - self.low)))
        self.high.copy_(torch.where(is_first, high, self.high + share * (high - self.high)))

    def grid(self) -> Grid:
        """Scale and zero point of the range so far."""
        seen = self.low <= self.high
        return grid_of_range(torch.where(seen, self.low, 0.0), torch.where(seen, self.high, 0.0), self.rule)

    def forward(self, values: Tensor) -> Tensor:
        if not values.is_floating_point():
            return values
        blocks = blocks_of_activation(self.rule, values, by_sample=self.by_sample)
        if self.rule.dynamic:
            return rounded(values, self.rule, grid_of(values, self.rule, blocks), blocks)
        observes = self.is_observing and self.training
        if observes and not is_recomputing():
            self.observe(values)
        done = rounded(values, self.rule, self.grid(), blocks)
        return done if observes else torch.where(self.low <= self.high, done, values)
