"""Small trainings under modifiers, in one go or stopped, saved to bytes and continued in new objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from trainwright.core.modifier import Modifier
from trainwright.recipes.manual_loop import ManualLoop

STEPS_PER_EPOCH = 4


class Mixed(nn.Module):
    """An embedding, convolutions, batch norm and linear layers, one weight used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.first = nn.Conv1d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Conv1d(8, 8, 1)
        self.hidden = nn.Linear(48, 16)
        self.tied = nn.Linear(16, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).transpose(1, 2)
        x = torch.relu(self.second(torch.relu(self.norm(self.first(x)))))
        return self.head(torch.relu(self.tied(torch.relu(self.hidden(x.flatten(1))))))


class Chain(nn.Module):
    """Convolutions, pooling and linear layers that tracing understands."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(2)
        self.hidden = nn.Linear(8 * 4 * 4, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.pool(torch.relu(self.bn2(self.conv2(x))))
        return self.head(torch.relu(self.hidden(torch.flatten(x, 1))))


def tokens_batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, 11, (5, 6), generator=generator), torch.randint(0, 11, (5,), generator=generator)


def pictures_batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(6, 1, 8, 8, generator=generator), torch.randint(0, 3, (6,), generator=generator)


def loss_of(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]).float(), batch[1])


class Training:
    """One training: model, optimizer and modifiers, with batches that depend only on the step."""

    def __init__(
        self,
        modifiers: list[Modifier],
        *,
        build: Callable[[], nn.Module] = Mixed,
        batches: Callable[[int], tuple[Tensor, Tensor]] = tokens_batch,
        optimizer: Callable[[list[nn.Parameter]], Any] | None = None,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        epoch: float = 0.0,
        saved: dict[str, Any] | None = None,
    ) -> None:
        torch.manual_seed(0)
        self.model = build().to(dtype).to(device)
        self.batches = lambda step: tuple(part.to(device) for part in batches(step))
        self.modifiers = modifiers
        for modifier in modifiers:
            # A Trainer does so before it makes the optimizer.
            modifier.prepare_model(self.model)
        if saved is not None:
            for modifier, state in zip(modifiers, saved["modifiers"], strict=True):
                if hasattr(modifier, "restore_structure"):
                    modifier.restore_structure(self.model, state["values"]["own"])
        make = optimizer or (lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.01))
        self.optimizer: Any = make(list(self.model.parameters()))
        self.drive = ManualLoop(
            modifiers, self.model, self.optimizer, STEPS_PER_EPOCH, epoch=epoch, gradients=self._gradients
        )
        if saved is not None:
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            for modifier, state in zip(modifiers, saved["modifiers"], strict=True):
                modifier.load_state_dict(state)

    def _gradients(self, count: int) -> Iterator[None]:
        kept = {p: p.grad for p in self.model.parameters()}
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        for number in range(count):
            self.model.zero_grad()
            loss_of(self.model, self.batches(1000 + number)).backward()
            yield
        for parameter, gradient in kept.items():
            parameter.grad = gradient
        for name, buffer in self.model.named_buffers():
            buffer.copy_(buffers[name])

    def run(self, until: int, watch: Callable[[Training], None] = lambda training: None) -> Training:
        while self.drive.steps < until:
            loss = loss_of(self.model, self.batches(self.drive.steps))
            self.drive.loss(loss).backward()
            self.drive.step()
            self.optimizer.zero_grad()
            watch(self)
        return self

    def saved(self) -> dict[str, Any]:
        """Everything through the formats of a checkpoint: safetensors, JSON."""
        modifiers = []
        for modifier in self.modifiers:
            state = modifier.state_dict()
            tensors = safetensors.torch.load(safetensors.torch.save(state["tensors"]))
            modifiers.append({"tensors": tensors, "values": json.loads(json.dumps(state["values"]))})
        model = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        optimizer = self.optimizer.state_dict()
        optimizer["state"] = {
            number: {key: value.clone() if isinstance(value, Tensor) else value for key, value in entries.items()}
            for number, entries in optimizer["state"].items()
        }
        return {"model": model, "optimizer": optimizer, "modifiers": modifiers}


def merged(*parts: dict[str, Any]) -> dict[str, Any]:
    """Arguments, the later ones over the earlier."""
    return {name: value for part in parts for name, value in part.items()}


def sparsity(tensor: Tensor) -> float:
    return float((tensor == 0).double().mean())
