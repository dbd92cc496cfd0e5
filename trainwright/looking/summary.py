"""``trainer.summary()``: layers, parameters, operations and memory, before the first step."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from trainwright.engines.torch.rehearsal.estimate import default_loss, estimate_memory
from trainwright.engines.torch.rehearsal.step import without_numbers
from trainwright.engines.torch.targets import base_model, count_rows
from trainwright.looking.first_batch import first_batch
from trainwright.looking.pages import table
from trainwright.looking.words import amount, shown, size
from trainwright.proving.copies import nothing_said, random_numbers_put_back
from trainwright.training.setup import Setup, require_model

#: Lines of the table of layers.
_MOST_LAYERS = 40


@dataclasses.dataclass(frozen=True)
class Layer:
    """One part of the model, with everything in it."""

    name: str
    kind: str
    parameters: int
    trained: int
    depth: int


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a model is, and what a step of its training takes; print it, or let a notebook show it."""

    model: str
    layers: list[Layer]
    parameters: int
    trained: int
    #: Bytes of all weights.
    weights: int
    #: Floating point operations of forward and backward passes, of a sample and of an optimizer step in this process;
    #: None where they could not be counted.
    flops_per_sample: float | None
    flops_per_step: float | None
    #: Bytes of the GPU that a step takes, by what they are for; empty where it could not be tried.
    memory: dict[str, int]
    notes: list[str]

    def __str__(self) -> str:
        width = max((len(layer.name) + 2 * layer.depth for layer in self.layers), default=0)
        lines = [self.title]
        for layer in self.layers:
            name = f"{'  ' * layer.depth}{layer.name}"
            note = "" if layer.trained == layer.parameters else f"  {layer.trained:,} trained"
            lines.append(f"  {shown(name):<{width}}  {shown(layer.kind):<24}{layer.parameters:>14,}{note}")
        lines += [f"  {title:<26}{text}" for title, text in self.totals]
        return "\n".join([*lines, *(f"  {shown(note)}" for note in self.notes)])

    @property
    def title(self) -> str:
        """The model, and how much of it is trained."""
        return f"{self.model}: {self.parameters:,} parameters, {self.trained:,} of them trained ({size(self.weights)})"

    @property
    def totals(self) -> list[tuple[str, str]]:
        """What a step takes, in words."""
        found = []
        if self.flops_per_sample is not None and self.flops_per_step is not None:
            operations = (
                f"{amount(self.flops_per_sample, 'FLOP')} a sample, {amount(self.flops_per_step, 'FLOP')} a step"
            )
            found.append(("operations, about", operations))
        if self.memory:
            parts = ", ".join(f"{name} {size(value)}" for name, value in self.memory.items())
            found.append(("memory of a GPU, about", f"{size(sum(self.memory.values()))} ({parts})"))
        return found

    def _repr_html_(self) -> str:
        rows = [
            ("\u2003" * one.depth + one.name, one.kind, f"{one.parameters:,}", f"{one.trained:,}")
            for one in self.layers
        ]
        return "\n".join(
            (
                table([self.title, ""], [*self.totals, *(("", note) for note in self.notes)]),
                table(["layer", "class", "parameters", "trained"], rows),
            )
        )

    def as_dict(self) -> dict[str, Any]:
        """All of it in plain values, sizes in bytes."""
        return dataclasses.asdict(self)


def summary(setup: Setup, depth: int = 2) -> Summary:
    """What the model is and what a step takes, tried on tensors without numbers; see ``Trainer.summary``."""
    require_model(setup)
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
        raise ValueError(f"depth={depth!r} must be a number of levels, from 0 on.")
    model, notes = setup.model, []
    layers = _layers(base_model(model), depth)
    if len(layers) > _MOST_LAYERS:
        notes.append(f"{len(layers) - _MOST_LAYERS} more layers are not shown; a smaller depth shows all of them.")
    parameters = list(model.parameters())
    found: tuple[float, float] | None = None
    memory: dict[str, int] = {}
    try:
        batch = first_batch(setup)
    except ValueError as error:
        notes.append(f"Operations and memory are not estimated: {error}")
    else:
        with random_numbers_put_back(), nothing_said():
            found = _counted(setup, batch, notes)
            memory = _memory(setup, batch, notes)
    return Summary(
        type(base_model(model)).__name__,
        layers[:_MOST_LAYERS],
        sum(one.numel() for one in parameters),
        sum(one.numel() for one in parameters if one.requires_grad),
        sum(one.numel() * one.element_size() for one in parameters),
        *(found or (None, None)),
        memory,
        notes,
    )


def _layers(model: nn.Module, depth: int) -> list[Layer]:
    found = []
    for name, module in model.named_modules():
        level = name.count(".")
        if not name or level > depth:
            continue
        parameters = list(module.parameters())
        if parameters:
            trained = sum(one.numel() for one in parameters if one.requires_grad)
            count = sum(one.numel() for one in parameters)
            found.append(Layer(name.rpartition(".")[2], type(module).__name__, count, trained, level))
    return found


def _loss(setup: Setup) -> Any:
    # A Module's loss is what its training_step says.
    return default_loss if setup.module is not None else setup.hooks().compute_loss


def _counted(setup: Setup, batch: Any, notes: list[str]) -> tuple[float, float] | None:
    def empty(value: Any) -> Any:
        return torch.empty(value.shape, dtype=value.dtype) if isinstance(value, Tensor) else value

    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = without_numbers(setup.model)
            model.train()
            with FlopCounterMode(display=False) as counter:
                loss = _loss(setup)(model, tree_map(empty, batch))
                (loss.mean() if loss.ndim else loss).backward()
        operations = float(counter.get_total_flops())
    except Exception as error:
        # Models may do anything; that this one cannot be tried like this is no mistake of it.
        notes.append(f"Operations were not counted ({type(error).__name__}): the model looks at its own numbers.")
        return None
    return operations / max(count_rows(batch), 1), operations * setup.args.gradient_accumulation_steps


def _memory(setup: Setup, batch: Any, notes: list[str]) -> dict[str, int]:
    try:
        again = [bool(setup.args.gradient_checkpointing)]
        (one, *_) = [
            *estimate_memory(setup.model, setup.args, batch, loss=_loss(setup), strategies=["sp"], recompute=again),
            *estimate_memory(setup.model, setup.args, batch, loss=_loss(setup), strategies=["sp"], recompute=[False]),
        ]
    except Exception as error:
        notes.append(f"Memory was not estimated ({type(error).__name__}): the model looks at its own numbers.")
        return {}
    if setup.backend.world_size > 1 or setup.args.fsdp or setup.args.deepspeed:
        notes.append("Memory is that of one process with the whole model: `trainwright estimate` spreads it.")
    return {**one.parts, **one.besides}
