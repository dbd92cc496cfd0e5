"""A ``mindspore.nn.Cell`` as a model of the Trainer, which knows modules of torch.

``CellModel`` gives the Cell a torch face: names, shapes and values of its parameters. ``capture_cell`` makes the Cell a
function of arrays, as ``capture`` does it for modules of torch, so that the engine treats both alike.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mindspore
import torch
from mindspore import Tensor as Array
from mindspore import nn as cells
from mindspore.nn.layer.normalization import _BatchNorm
from torch import nn
from torch.utils import _pytree as pytree

from trainwright.engines.graph.lowered import call
from trainwright.engines.graph.random_inputs import RandomInput, dropout_mask
from trainwright.engines.mindspore.arrays import to_array, to_tensor, torch_type
from trainwright.engines.mindspore.operations.matrix import batch_norm, batch_norm_fixed

#: ``(outputs, labels)`` of a Cell, or with ``num_items_in_batch=``, to a loss; on MindSpore's arrays.
CellLoss = Callable[..., Any]


class CellModel(nn.Module):
    """The torch face of ``cell``.

    >>> model = CellModel(cells.Dense(2, 3))
    >>> {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    {'weight': (3, 2), 'bias': (3,)}
    >>> model.eval()(torch.zeros(1, 2)).shape
    torch.Size([1, 3])
    """

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.cell = cell
        for name, places in owners_of(cell).items():
            owner, key = places[0]
            parameter = owner._params[key]
            value = to_tensor(parameter)
            holder: nn.Module = self
            *path, last = name.split(".")
            for step in path:
                if not hasattr(holder, step):
                    holder.add_module(step, nn.Module())
                holder = getattr(holder, step)
            # What a Cell measures while it runs is a buffer for torch.
            if isinstance(owner, _BatchNorm) and key.startswith("moving_"):
                holder.register_buffer(last, value)
            else:
                trained = parameter.requires_grad and value.is_floating_point()
                holder.register_parameter(last, nn.Parameter(value, requires_grad=trained))
        self.forward = self._with_signature(inspect.signature(cell.construct))

    def _with_signature(self, signature: inspect.Signature) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._compute(args, kwargs)

        # Column names are read from it.
        forward.__signature__ = signature  # pyrefly: ignore[missing-attribute]
        return forward

    def _compute(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.training and torch.is_grad_enabled():
            raise ValueError(
                "A Cell has no gradients in torch: train it with TrainingArguments(engine='mindspore'), or call "
                ".eval() before you call it."
            )
        values = {name: to_array(tensor) for name, tensor in self.values().items()}
        args, kwargs = pytree.tree_map_only(torch.Tensor, to_array, (args, kwargs))
        with substituted(self.cell, values, self.training, _Masks()):
            outputs = self.cell(*args, **kwargs)
        return pytree.tree_map_only(Array, to_tensor, outputs)

    def values(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by the Cell's names for them."""
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}

    def update_cell(self) -> None:
        """Write what was learned into the Cell's own Parameters."""
        owners = owners_of(self.cell)
        for name, tensor in self.values().items():
            owner, key = owners[name][0]
            owner._params[key].set_data(to_array(tensor))


def owners_of(cell: Any) -> dict[str, list[tuple[Any, str]]]:
    """For each parameter's name the Cells that hold it, and under which attribute; several where it is shared."""
    first: dict[int, str] = {}
    owners: dict[str, list[tuple[Any, str]]] = {}
    for path, part in cell.cells_and_names():
        for key, parameter in part._params.items():
            if parameter is not None:
                name = first.setdefault(id(parameter), f"{path}.{key}" if path else key)
                owners.setdefault(name, []).append((part, key))
    hidden = [parameter.name for parameter in cell.get_parameters() if id(parameter) not in first]
    if hidden:
        raise ValueError(
            f"{type(cell).__name__} keeps parameters outside of attributes of their own, e.g. in a ParameterTuple "
            f"({', '.join(hidden[:3])}): make each an attribute of a Cell."
        )
    return owners


@dataclass
class _Masks:
    """What each dropout multiplies its input by, in the order in which they are reached."""

    given: list[Any] = field(default_factory=list)
    #: Where nothing is given, masks are drawn, and how is kept here.
    drawn: list[RandomInput] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._left = iter(self.given)

    def next(self, array: Any, share: float) -> Any:
        if self.given:
            return next(self._left)
        shape = tuple(array.shape)
        strides = torch.empty(shape, device="meta").stride()
        dtype = torch_type(array)
        self.drawn.append(lambda: dropout_mask(shape, strides, dtype, share))
        return to_array(self.drawn[-1]())


@contextmanager
def substituted(cell: Any, values: Mapping[str, Any], training: bool, masks: _Masks) -> Iterator[dict[str, Any]]:
    """``cell`` with ``values`` in place of its Parameters; yields what statistics became, by name.

    Layers that would change a Parameter, or draw from MindSpore's generator, are computed here instead: a compiled
    graph forgets the first, and no checkpoint could hold the second.
    """
    if mindspore.get_context("mode") != mindspore.PYNATIVE_MODE:
        raise ValueError(
            "Cells are compiled here, as a whole: call mindspore.set_context(mode=mindspore.PYNATIVE_MODE)."
        )
    was_training, changed = cell.training, dict[str, Any]()
    owners = owners_of(cell)
    kept = [(part, key, part._params[key]) for places in owners.values() for part, key in places]
    names = {(id(part), key): name for name, places in owners.items() for part, key in places}
    cell.set_train(training)
    # MindSpore looks at parameters' names when a Cell is first called, which arrays do not have.
    cell._init_check()
    replaced = []
    try:
        for _, part in cell.cells_and_names():
            if not part._is_check_and_refresh:
                part._is_check_and_refresh = True
            own = _own_construct(part, names, changed, masks)
            if own is not None:
                part.__dict__["construct"] = own
                replaced.append(part)
        for name, places in owners.items():
            for part, key in places:
                part._params[key] = values[name]
        yield changed
    finally:
        for part, key, parameter in kept:
            part._params[key] = parameter
        for part in replaced:
            part.__dict__.pop("construct")
        cell.set_train(was_training)


def _own_construct(part: object, names: Mapping[Any, str], changed: dict[str, Any], masks: _Masks) -> Any:
    if type(part) is cells.Dropout:
        # In MindSpore's older words the share that stays.
        share = part.p if part.p is not None else 1 - part.keep_prob

        def drop(array: object) -> Any:
            return array * masks.next(array, float(share)) if part.training and share > 0 else array

        return drop
    if not isinstance(part, _BatchNorm):
        return None

    def normalize(array: object) -> Any:
        statistics = part._params["moving_mean"], part._params["moving_variance"]
        measures = part.training if part.use_batch_statistics is None else part.use_batch_statistics
        scale = part._params["gamma"], part._params["beta"]
        if not measures:
            return batch_norm_fixed(array, *scale, *statistics, part.momentum, part.eps)[0]
        result, _, _, *moved = batch_norm(array, *scale, *statistics, True, part.momentum, part.eps)
        for key, value in zip(("moving_mean", "moving_variance"), moved, strict=True):
            part._params[key] = changed[names[id(part), key]] = value
        return result

    return normalize


@dataclass
class CellComputation:
    """A Cell, and a loss where there is one, as a function of arrays; the fields are those of ``Captured``."""

    cell: Any
    training: bool
    trained: list[str]
    fixed: list[str]
    inputs: list[int]
    #: ``(given) -> outputs``, of arrays, while the Cell is a function.
    compute: Callable[[Any], Any]
    given: Any
    constants: list[torch.Tensor] = field(default_factory=list)
    random: list[RandomInput] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    structure: Any = None
    _others: dict[int, Any] = field(default_factory=dict)

    def run(self, operations: Any, arguments: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Outputs, and new values of ``changed``."""
        outputs, changed = self._outputs(arguments, _Masks(list(arguments[self._first_mask() :])))
        leaves, _ = pytree.tree_flatten(outputs)
        return [leaf for leaf in leaves if isinstance(leaf, Array)], [changed[name] for name in self.changed]

    def _first_mask(self) -> int:
        return len(self.trained) + len(self.fixed) + len(self.inputs)

    def _outputs(self, arguments: Sequence[Any], masks: _Masks) -> tuple[Any, dict[str, Any]]:
        names = self.trained + self.fixed
        values = dict(zip(names, arguments, strict=False))
        leaves, structure = pytree.tree_flatten(self.given)
        for place, argument in zip(self.inputs, arguments[len(names) : self._first_mask()], strict=True):
            leaves[place] = argument
        with substituted(self.cell, values, self.training, masks) as changed:
            return self.compute(pytree.tree_unflatten(leaves, structure)), changed

    def look(self, arguments: Sequence[Any]) -> None:
        """Run once to see how outputs are nested, what changes and what is random; refuse what would be lost."""
        masks = _Masks()
        before = [to_tensor(array) for array in arguments]
        outputs, changed = self._outputs(arguments, masks)
        names = self.trained + self.fixed
        moved = [
            name for name, old, new in zip(names, before, arguments, strict=False) if not _same(old, to_tensor(new))
        ]
        if moved:
            raise ValueError(
                f"{type(self.cell).__name__} changes {', '.join(moved[:3])} in place while it runs, which a compiled "
                "graph would forget: only the statistics of MindSpore's own BatchNorm layers may change."
            )
        self.random, self.changed = masks.drawn, list(changed)
        given = [to_array(draw()) for draw in masks.drawn]
        runs = [
            pytree.tree_leaves(self._outputs(arguments, _Masks(given))[0]) for _ in range(2 if self.training else 1)
        ]
        if not all(_alike(to_tensor(a), to_tensor(b)) for a, b in zip(runs[0], runs[-1], strict=True) if _array(a)):
            raise ValueError(
                f"{type(self.cell).__name__} draws random numbers from MindSpore's generator, which no checkpoint can "
                "hold: use mindspore.nn.Dropout, whose numbers are drawn here, and no other random operation."
            )
        leaves, self.structure = pytree.tree_flatten(outputs)
        self._others = {at: None if _array(leaf) else leaf for at, leaf in enumerate(leaves)}
        self._arrays = [at for at, leaf in enumerate(leaves) if _array(leaf)]

    def rebuilt(self, outputs: Sequence[Any]) -> Any:
        """Flat outputs in the structure that the Cell returned them in."""
        computed = dict(zip(self._arrays, outputs, strict=True))
        return pytree.tree_unflatten([computed.get(at, other) for at, other in self._others.items()], self.structure)


def _array(value: object) -> bool:
    return isinstance(value, Array)


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Up to rounding, which MindSpore's kernels may do one way or the other."""
    return torch.allclose(one.double().nan_to_num(), other.double().nan_to_num(), rtol=1e-4, atol=1e-6)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num())


def capture_cell(
    compute_loss_func: CellLoss | None = None, label_names: Sequence[str] = ("labels",)
) -> Callable[[CellModel, Callable[..., Any], Any], CellComputation]:
    """What makes a ``CellModel`` a function of arrays, for the engine; in place of ``capture``.

    Evaluation returns what the Cell returns. Training returns its loss: of ``compute_loss_func(outputs, labels)``, in
    MindSpore's operations, or what the Cell itself returns as ``"loss"`` of a dict, or first, or alone.
    """

    def capture(model: CellModel, function: Callable[..., Any], given: Any) -> CellComputation:
        cell = model.cell
        refuse_unreadable(cell)
        forward_only = function is call

        def compute(arrays: Any) -> Any:
            first, second = arrays
            if forward_only:
                return cell(*first, **second)
            inputs = dict(first)
            if compute_loss_func is None:
                return loss_in(cell(**inputs))
            labels = {name: inputs.pop(name) for name in label_names if name in inputs}
            told = labels[label_names[0]] if len(label_names) == 1 else labels
            counts = "num_items_in_batch" in inspect.signature(compute_loss_func).parameters
            return compute_loss_func(cell(**inputs), told, **({"num_items_in_batch": second} if counts else {}))

        tensors = model.values()
        trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        fixed = [name for name in tensors if name not in trained]
        leaves = pytree.tree_leaves(given)
        inputs = [at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        computation = CellComputation(cell, model.training, trained, fixed, inputs, compute, given)
        values = [tensors[name] for name in trained + fixed] + [leaves[at] for at in inputs]
        computation.look([to_array(tensor) for tensor in values])
        return computation

    return capture


def refuse_unreadable(cell: Any) -> None:
    """MindSpore's compiler reads the source of what it runs."""
    for _, part in cell.cells_and_names():
        try:
            inspect.getsourcelines(type(part).construct)
        except OSError:
            raise ValueError(
                f"MindSpore compiles only what it can read, and {type(part).__name__} was typed into an interpreter: "
                "define it in a file or in a notebook."
            ) from None


def loss_in(outputs: Any) -> Any:
    """The loss that a Cell returns itself."""
    if isinstance(outputs, dict):
        if "loss" not in outputs:
            raise ValueError(f"The Cell returns no 'loss' but {', '.join(outputs)}: pass compute_loss_func=.")
        return outputs["loss"]
    first = outputs[0] if isinstance(outputs, tuple | list) else outputs
    if first.size != 1:
        raise ValueError(
            f"The Cell returns outputs of shape {tuple(first.shape)} and no loss: pass compute_loss_func=."
        )
    return first.reshape(())


def for_torch(loss: CellLoss) -> Callable[..., torch.Tensor]:
    """``loss`` of a Cell's outputs, for outputs that are torch's: so an evaluation computes it."""

    @functools.wraps(loss)
    def face(*args: object, **kwargs: object) -> torch.Tensor:
        args, kwargs = pytree.tree_map_only(torch.Tensor, to_array, (args, kwargs))
        return to_tensor(loss(*args, **kwargs))

    face.__dict__["for_cells"] = loss
    return face
