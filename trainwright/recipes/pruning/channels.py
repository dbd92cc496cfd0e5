"""Which layers share channels: found by following a model's forward once, symbolically.

A :class:`Space` is a set of channels. Producers make them, layers along the way treat each by itself, consumers read
them. Residual additions join spaces. What is not understood makes a space fixed: its channels cannot be taken away.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_SHAPE_ONLY = (
    *(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.Upsample),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
)
_ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh),
    *(nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Softplus, nn.LogSigmoid),
)
_AVERAGING_FUNCTIONS = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)
_SHAPE_ONLY_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    *(functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d, functional.interpolate),
    *(functional.max_pool1d, functional.max_pool2d, functional.max_pool3d),
    *_AVERAGING_FUNCTIONS,
    *(functional.adaptive_avg_pool1d, functional.adaptive_avg_pool2d, functional.adaptive_avg_pool3d),
    *(functional.adaptive_max_pool1d, functional.adaptive_max_pool2d, functional.adaptive_max_pool3d),
)
_ELEMENTWISE_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    *(functional.relu, torch.relu, torch.relu_, functional.relu6, functional.leaky_relu, functional.elu),
    *(functional.gelu, functional.silu, functional.mish, functional.hardswish, functional.softplus),
    *(torch.sigmoid, functional.sigmoid, torch.tanh, functional.tanh, torch.abs, torch.square),
)
_ELEMENTWISE_METHODS = ("relu", "relu_", "sigmoid", "tanh", "abs", "square")
_JOINING = (operator.add, operator.iadd, torch.add, operator.mul, operator.imul, torch.mul, operator.sub, torch.sub)
_JOINING_METHODS = {"add": torch.add, "add_": torch.add, "mul": torch.mul, "mul_": torch.mul}


@dataclass
class Space:
    """Channels that are kept or taken away together."""

    count: int
    producers: dict[str, None] = field(default_factory=dict)
    along: dict[str, None] = field(default_factory=dict)
    #: Layer -> what it reads from each channel where every producer is zero there (NaN: not one number).
    consumers: dict[str, Tensor] = field(default_factory=dict)
    is_fixed: bool = False


@dataclass
class _Channels:
    """What a tensor in the graph carries."""

    space: int
    #: "second" dimension, "last" dimension, or "flat": last, with several neighbours for each channel.
    layout: str
    #: Value of each channel where every producer is zero.
    constant: Tensor


class _Follower(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, layers: dict[str, nn.Module], shared: set[str]) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.layers, self.shared = layers, shared
        self.spaces: list[Space] = []
        self._joined: list[int] = []
        self._made_by: dict[str, int] = {}

    # ---- spaces

    def find(self, number: int) -> int:
        while self._joined[number] != number:
            number = self._joined[number]
        return number

    def new_space(self, layer: str, count: int, layout: str, constant: Tensor) -> _Channels:
        if layer in self._made_by:
            number = self.find(self._made_by[layer])
        else:
            number = self._made_by[layer] = len(self.spaces)
            self.spaces.append(Space(count, producers={layer: None}, is_fixed=layer in self.shared))
            self._joined.append(number)
        return _Channels(number, layout, constant)

    def join(self, first: _Channels, second: _Channels) -> None:
        one, other = self.find(first.space), self.find(second.space)
        if one == other:
            return
        target, source = self.spaces[one], self.spaces[other]
        target.producers |= source.producers
        target.along |= source.along
        target.consumers |= source.consumers
        target.is_fixed |= source.is_fixed or target.count != source.count
        self._joined[other] = one

    def fix(self, *values: Any) -> None:
        fx.node.map_aggregate(values, self._fix_one)

    def _fix_one(self, value: object) -> Any:
        if isinstance(value, _Channels):
            self.spaces[self.find(value.space)].is_fixed = True
        return value

    # ---- nodes

    def placeholder(self, target: object, args: object, kwargs: object) -> Any:
        return None

    def get_attr(self, target: object, args: object, kwargs: object) -> Any:
        return None

    def output(self, target: object, args: object, kwargs: object) -> Any:
        self.fix(args)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        name, layer = str(target), self.layers[str(target)]
        value = args[0] if args else next(iter(kwargs.values()), None)
        if isinstance(layer, nn.Embedding):
            zero = torch.zeros(layer.embedding_dim, device=layer.weight.device)
            return self.new_space(name, layer.embedding_dim, "last", zero)
        if isinstance(layer, nn.Linear):
            self._consume(name, value, layer.in_features, ("last", "flat"))
            return self.new_space(name, layer.out_features, "last", _bias(layer, layer.out_features))
        if isinstance(layer, _CONVOLUTIONS):
            return self._convolution(name, layer, value)
        if not isinstance(value, _Channels):
            return None
        if isinstance(layer, _BATCH_NORMS) and layer.num_features == self.spaces[self.find(value.space)].count:
            self.spaces[self.find(value.space)].along[name] = None
            return _Channels(value.space, value.layout, _normalized(layer, value.constant))
        if isinstance(layer, nn.Flatten) and layer.start_dim == 1:
            return _flattened(value)
        if isinstance(layer, _SHAPE_ONLY):
            padding = (
                getattr(layer, "padding", 0) if isinstance(layer, (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)) else 0
            )
            return _unless_padded(value, padding)
        if isinstance(layer, _ELEMENTWISE):
            with torch.no_grad():
                return _Channels(value.space, value.layout, layer(value.constant.clone()))
        self.fix(args, kwargs)
        return None

    def _consume(self, name: str, value: object, inputs: int, layouts: tuple[str, ...]) -> None:
        if not isinstance(value, _Channels):
            return
        space = self.spaces[self.find(value.space)]
        fits = inputs == space.count or (value.layout == "flat" and inputs % space.count == 0)
        if value.layout not in layouts or not fits or name in self.shared:
            space.is_fixed = True
        known = space.consumers.get(name)
        same = known is None or torch.equal(known, value.constant)
        space.consumers[name] = value.constant if same else torch.full_like(value.constant, float("nan"))

    def _convolution(self, name: str, layer: Any, value: Any) -> Any:
        if layer.groups == 1:
            self._consume(name, value, layer.in_channels, ("second",))
            return self.new_space(name, layer.out_channels, "second", _bias(layer, layer.out_channels))
        if isinstance(value, _Channels) and layer.groups == layer.in_channels == layer.out_channels:
            self.spaces[self.find(value.space)].along[name] = None
            # Zero stays the bias; anything else meets the border.
            constant = torch.where(value.constant == 0, _bias(layer, layer.out_channels), float("nan"))
            return _Channels(value.space, value.layout, constant)
        self.fix(value)
        return None

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in _JOINING:
            return self._joining(target, args)
        value = args[0] if args and isinstance(args[0], _Channels) else None
        if value is not None and target in _SHAPE_ONLY_FUNCTIONS:
            is_average = target in _AVERAGING_FUNCTIONS
            return _unless_padded(value, kwargs.get("padding", args[3] if len(args) > 3 else 0) if is_average else 0)
        if value is not None and target in _ELEMENTWISE_FUNCTIONS:
            with torch.no_grad():
                rest = {key: False if key == "inplace" else entry for key, entry in kwargs.items()}
                return _Channels(value.space, value.layout, target(value.constant.clone(), *args[1:], **rest))
        if value is not None and target is torch.flatten and (kwargs.get("start_dim") or [*args[1:], 0][0]) == 1:
            return _flattened(value)
        if target in (getattr, operator.getitem) and value is None:
            return None
        if target is getattr and args[1] in ("shape", "dtype", "device"):
            return None
        self.fix(args, kwargs)
        return None

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = args[0]
        if not isinstance(value, _Channels) or target in ("size", "dim"):
            return None
        if target in _JOINING_METHODS:
            return self._joining(_JOINING_METHODS[target], args)
        if target in _ELEMENTWISE_METHODS:
            return _Channels(value.space, value.layout, getattr(value.constant.clone(), target)())
        if target in ("contiguous", "clone"):
            return value
        if target == "flatten" and (kwargs.get("start_dim") or [*args[1:], 0][0]) == 1:
            return _flattened(value)
        if target in ("view", "reshape") and len(args) == 3 and args[2] == -1:
            return _flattened(value)
        if target == "mean" and value.layout == "second" and _is_over_positions(args[1:], kwargs):
            return _Channels(value.space, "last", value.constant)
        self.fix(args, kwargs)
        return None

    def _joining(self, target: Any, args: Any) -> Any:
        first, second = args[:2]
        if isinstance(first, _Channels) and isinstance(second, _Channels) and first.layout == second.layout:
            if first.constant.shape == second.constant.shape:
                self.join(first, second)
                return _Channels(first.space, first.layout, target(first.constant, second.constant))
        elif isinstance(first, _Channels) and isinstance(second, (int, float)):
            return _Channels(first.space, first.layout, target(first.constant, second))
        self.fix(args)
        return None


def _flattened(value: _Channels) -> _Channels:
    return _Channels(value.space, "flat" if value.layout == "second" else value.layout, value.constant)


def _unless_padded(value: _Channels, padding: object) -> _Channels:
    is_padded = any(padding) if isinstance(padding, (tuple, list)) else bool(padding)
    constant = torch.where(value.constant == 0, value.constant, float("nan")) if is_padded else value.constant
    return _Channels(value.space, value.layout, constant)


def _is_over_positions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    dims = kwargs.get("dim", args[0] if args else None)
    dims = [dims] if isinstance(dims, int) else dims
    kept = kwargs.get("keepdim", args[1] if len(args) > 1 else False)
    return not kept and dims is not None and (set(dims) in ({2, 3}, {-1, -2}, {2}, {2, 3, 4}, {-1, -2, -3}))


def _bias(layer: Any, count: int) -> Tensor:
    if layer.bias is None:
        return torch.zeros(count, dtype=layer.weight.dtype, device=layer.weight.device)
    return layer.bias.detach().clone()


def _normalized(layer: Any, constant: Tensor) -> Tensor:
    if layer.running_mean is None:
        return torch.full_like(constant, float("nan"))
    scale = (layer.running_var + layer.eps).rsqrt()
    if layer.weight is not None:
        scale = scale * layer.weight.detach()
    shift = 0 if layer.bias is None else layer.bias.detach()
    return (constant - layer.running_mean) * scale + shift


def find_spaces(model: nn.Module) -> list[Space]:
    """The spaces of ``model`` that may be cut.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> [(list(space.producers), list(space.consumers)) for space in find_spaces(model)]
    [(['0'], ['2'])]
    """
    try:
        graph = fx.Tracer().trace(model)
    except Exception as error:
        raise ValueError(
            f"How the layers of {type(model).__name__} depend on each other could not be found out ({error}): name it "
            "in param_group_dependency_map."
        ) from error
    layers = dict(model.named_modules())
    owners: dict[int, list[str]] = {}
    for name, layer in layers.items():
        for parameter in layer.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(name)
    shared = {name for names in owners.values() if len(names) > 1 for name in names}
    follower = _Follower(fx.GraphModule(model, graph), layers, shared)
    # Nothing is computed: every value in the graph is what it carries, or None.
    follower.run(*[None for node in graph.nodes if node.op == "placeholder"])
    roots = [space for number, space in enumerate(follower.spaces) if follower.find(number) == number]
    return [space for space in roots if not space.is_fixed and space.consumers]
