"""Small networks by name, for experiments that bring none of their own.

Each takes the sizes that its task finds in the data (``inputs``, ``outputs``, ``channels``, ``symbols``) and whatever
``model.options`` adds. None has a loss: the Trainer takes cross-entropy or mean squared error with ``labels``.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn


class Perceptron(nn.Module):
    """Layers of ``width`` units between features and outputs.

    >>> import torch
    >>> Perceptron(inputs=4, outputs=3, width=8, layers=1)(features=torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    """

    def __init__(self, inputs: int, outputs: int, width: int = 128, layers: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        sizes = [inputs, *[width] * layers]
        hidden = [
            layer
            for before, after in pairwise(sizes)
            for layer in (nn.Linear(before, after), nn.ReLU(), nn.Dropout(dropout))
        ]
        self.layers = nn.Sequential(*hidden, nn.Linear(sizes[-1], outputs))

    def forward(self, features: Tensor | None = None, pixel_values: Tensor | None = None) -> Tensor:
        given = features if features is not None else pixel_values
        assert given is not None
        return self.layers(given.flatten(1))


class ConvolutionalNet(nn.Module):
    """Stages of two convolutions, each with twice the channels of the one before; images of any size."""

    def __init__(self, channels: int, outputs: int, width: int = 24, stages: int = 2, dropout: float = 0.2) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = channels
        for stage in range(stages):
            after = width * 2**stage
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
            layers += [nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
            if stage + 1 < stages:
                layers.append(nn.MaxPool2d(2, ceil_mode=True))
            before = after
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(dropout), nn.Linear(before * 4, outputs)
        )

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.head(self.features(pixel_values))


class CharacterNet(nn.Module):
    """Characters to logits of the next one, through a GRU."""

    def __init__(self, symbols: int, width: int = 160, embedding: int = 64, layers: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, embedding)
        self.memory = nn.GRU(embedding, width, num_layers=layers, batch_first=True)
        self.head = nn.Linear(width, symbols)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.memory(self.embedding(input_ids))[0])
