"""Mixup and CutMix: each sample is mixed with another of its batch, and learns both labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainwright.core.modifier import Passes
from trainwright.engines.torch.loss_functions.base import check_number
from trainwright.engines.torch.regularisers.base import Regulariser
from trainwright.engines.torch.targets import find_labels


class Mixup(Regulariser):
    """``share * x + (1 - share) * another x``, with the loss of both labels in the same shares.

    The share is drawn from Beta(alpha, alpha) for each batch, and who is mixed with whom; both from torch's generator,
    which a checkpoint holds. The partner is of the same micro-batch, so accumulation draws others, which is said once.
    Inputs are numbers; of a model that computes its own loss, give ``compute_loss_func``.

    >>> mixup = Mixup(alpha=0.4)
    >>> mixup.alpha
    0.4
    """

    mixes = True

    joins_samples = "a sample is mixed with others of its batch"
    #: Whether it makes one mixture, so that there has to be one input.
    one_input = False

    def __init__(self, alpha: float = 0.2) -> None:
        super().__init__()
        check_number("alpha", alpha, 0.0, above=True)
        self.alpha = float(alpha)

    def compute_loss(self, passes: Passes, inputs: Any) -> tuple[Tensor, Any]:
        labels = find_labels(inputs)
        if not isinstance(labels, Tensor):
            raise ValueError(f"{type(self).__name__} mixes labels, and the batch has none: give it 'labels'.")
        share = float(torch.distributions.Beta(self.alpha, self.alpha).sample())
        order = torch.randperm(len(labels))
        mixed, share = self._mixed(inputs, order.to(labels.device), share)
        loss, outputs = passes.run(mixed)
        others = passes.loss_of(outputs, labels[order.to(labels.device)])
        return share * loss + (1 - share) * others, outputs

    def _mixed(self, inputs: Any, order: Tensor, share: float) -> tuple[Any, float]:
        """The batch with its inputs mixed, and the share that each sample keeps of its own."""
        names = list(inputs) if isinstance(inputs, Mapping) else range(len(inputs) - 1)
        own = {name: inputs[name] for name in names if name != "labels"}
        wrong = [name for name, value in own.items() if not isinstance(value, Tensor) or not value.is_floating_point()]
        if wrong or not own:
            listed = ", ".join(map(str, wrong)) or "nothing"
            raise ValueError(
                f"{type(self).__name__} mixes inputs that are numbers, and the batch has {listed} besides: it is for "
                "images and tables; for texts take r_drop or fgm."
            )
        if self.one_input and len(own) > 1:
            raise ValueError(f"{type(self).__name__} mixes one input, and the batch has {', '.join(map(str, own))}.")
        found = {name: self.mix(value, order, share) for name, value in own.items()}
        kept = next(iter(found.values()))[1]
        values = {name: value for name, (value, _) in found.items()}
        if isinstance(inputs, Mapping):
            return {**inputs, **values}, kept
        return [*values.values(), inputs[-1]], kept

    def mix(self, values: Tensor, order: Tensor, share: float) -> tuple[Tensor, float]:
        return share * values + (1 - share) * values[order], share


class CutMix(Mixup):
    """A rectangle of each image comes from another image of its batch; labels count by their share of the area.

    The rectangle has ``1 - share`` of the area, share from Beta(alpha, alpha), around a pixel that is drawn; what
    lies outside of the image is cut off. As with :class:`Mixup`, accumulation draws others.

    >>> images = torch.stack([torch.zeros(1, 4, 4), torch.ones(1, 4, 4)])
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch._C.Generator object at ...>
    >>> mixed, share = CutMix().mix(images, torch.tensor([1, 0]), 0.5)
    >>> bool(mixed[0].mean() == 1 - share)
    True
    """

    one_input = True

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__(alpha)

    def mix(self, values: Tensor, order: Tensor, share: float) -> tuple[Tensor, float]:
        if values.ndim < 4:
            raise ValueError(f"CutMix takes images, samples x channels x height x width, not {tuple(values.shape)}.")
        height, width = values.shape[-2:]
        side = (1 - share) ** 0.5
        middle = (int(torch.randint(height, ())), int(torch.randint(width, ())))
        (top, bottom), (left, right) = (
            (max(at - int(size * side) // 2, 0), min(at + int(size * side) // 2, size))
            for at, size in zip(middle, (height, width), strict=True)
        )
        mixed = values.clone()
        mixed[..., top:bottom, left:right] = values[order][..., top:bottom, left:right]
        return mixed, 1 - (bottom - top) * (right - left) / (height * width)
