"""Models made on the meta device: they have shapes but no numbers until they are filled, block by block."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn


def is_empty(model: nn.Module) -> bool:
    """Whether some of the model has no numbers yet."""
    return any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def fill(part: nn.Module, root: nn.Module, device: torch.device, generator: torch.Generator) -> None:
    """Bring ``part`` to ``device``, what is empty with the values its layers start with.

    The numbers drawn depend on the generator alone, so every process draws the same, however many there are.
    """
    layers = [layer for layer in part.modules() if _has_empty(layer)]
    if layers:
        _materialize(part, device)
        seed = int(torch.randint(2**62, (), generator=generator))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            for layer in layers:
                _initialize(layer, root)
        tie = getattr(root, "tie_weights", None)
        if callable(tie) and part is root:
            tie()
    for tensor in _own(part):
        if tensor.device != device:
            tensor.data = tensor.data.to(device)


def _has_empty(layer: nn.Module) -> bool:
    return any(tensor.is_meta for tensor in (*layer.parameters(recurse=False), *layer.buffers(recurse=False)))


def _own(part: nn.Module) -> Iterator[Tensor]:
    """Tensors that are not sharded already as those of an inner block."""
    yield from (t for t in (*part.parameters(), *part.buffers()) if not hasattr(t, "device_mesh"))


def _materialize(part: nn.Module, device: torch.device) -> None:
    """Room for what is empty; one that two layers share stays one."""
    made: dict[int, nn.Parameter] = {}
    for layer in part.modules():
        for name, parameter in list(layer._parameters.items()):
            if parameter is not None and parameter.is_meta:
                if id(parameter) not in made:
                    room = torch.empty_like(parameter, device=device)
                    made[id(parameter)] = nn.Parameter(room, requires_grad=parameter.requires_grad)
                layer._parameters[name] = made[id(parameter)]
        for name, buffer in list(layer._buffers.items()):
            if buffer is not None and buffer.is_meta:
                layer._buffers[name] = torch.empty_like(buffer, device=device)


def _initialize(layer: nn.Module, root: nn.Module) -> None:
    own = getattr(root, "_init_weights", None)
    with torch.no_grad():
        if callable(own):
            own(layer)
        elif callable(reset := getattr(layer, "reset_parameters", None)):
            reset()
        else:
            raise ValueError(
                f"The model was made on the meta device, and its {type(layer).__name__} has no reset_parameters() to "
                "give it its first values: define it, or make the model on the CPU."
            )
