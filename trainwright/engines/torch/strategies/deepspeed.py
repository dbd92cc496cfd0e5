"""Optimizer state, gradients and weights spread by DeepSpeed's ZeRO, under our own loop.

DeepSpeed runs forward and backward passes, sums gradients, clips and updates. When a step begins and ends, what a
micro-batch weighs, the learning rate and checkpoints stay ours: for those weights and optimizer state are put together
with DeepSpeed's own helpers, and never leave as its pickles.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainwright.config.arguments import TrainingArguments
from trainwright.config.deepspeed import resolved, schedule_of, stage_of, with_width
from trainwright.config.refused_versions import refuse_wrong_gradients
from trainwright.core.backend import Backend
from trainwright.core.modifier import Modifier
from trainwright.engines.torch.module import Module, main_model, module_in
from trainwright.engines.torch.strategies.base import Strategy, StrategyContext
from trainwright.engines.torch.strategies.empty import is_empty
from trainwright.engines.torch.strategies.zero_state import ZeroState

#: Optimizers that do to a slice of many weights, end to end, what they do to each weight.
_ELEMENTWISE = (
    torch.optim.Adadelta,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.SGD,
)


class Called(nn.Module):
    """The model as DeepSpeed is to call it; of a Module, its ``training_step``."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        module = self.module
        return module.training_step(*inputs) if isinstance(module, Module) else module(*inputs, **kwargs)


class Wrapped(nn.Module):
    """What the Trainer calls: DeepSpeed's engine, through which the model's own attributes can still be read."""

    runs_training_step = True

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        # In a list, so that its parameters do not count twice.
        self._engine: list[Any] = []

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        engine = self._engine[0] if self._engine else self.module
        return engine(*inputs, **kwargs)

    def _stored_model(self) -> nn.Module:
        return self.module

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


class ZeroStrategy(Strategy):
    """ZeRO, stages 1 to 3."""

    name = "deepspeed"
    runs_in_step = sums_in_backward = updates_by_itself = gathers_to_save = places_model = True

    @classmethod
    def made_for(cls, context: StrategyContext) -> Strategy:
        _refuse_other_updates(context)
        args = context.args
        config = resolved(args)
        # Where it is not installed, that is said when a training begins.
        with contextlib.suppress(PackageNotFoundError):
            refuse_wrong_gradients(version("deepspeed"), config, processes=args.world_size)
        return cls(config, args)

    def __init__(self, config: dict[str, Any], args: TrainingArguments) -> None:
        self.config, self.stage = config, stage_of(config)
        self.empties_parameters = self.stage == 3
        self.casts_by_itself = bool(config["bf16"]["enabled"])
        self._args = args
        self._engine: Any = None
        self._state: ZeroState | None = None
        #: Whether the present step has run a backward pass: DeepSpeed cannot update without.
        self._has_gradients = False

    # ---- before the first step

    def spread(self, model: nn.Module, backend: Backend, called: nn.Module | None = None) -> nn.Module:
        _refuse_model(model)
        # DeepSpeed averages; each process has weighted its gradient by its share of the targets.
        self.gradient_factor = float(backend.world_size)
        backend.share([*model.parameters(), *model.buffers()])
        self._local_rank = backend.local_rank
        if self.casts_by_itself:
            main_model(model).register_forward_pre_hook(_halved, with_kwargs=True)
        return Wrapped(module_in(model) or model)

    def bring(self, model: nn.Module, device: torch.device) -> None:
        if self._engine is None:
            model.to(device)

    def take_optimizer(self, model: nn.Module, optimizer: Optimizer) -> nn.Module:
        assert isinstance(model, Wrapped)
        self._refuse_optimizer(optimizer, model.module)
        deepspeed = _imported(self._args.device, self._local_rank)
        inner = _twin(optimizer)
        config = with_width(self.config, _width(model.module))
        config = {name: value for name, value in config.items() if name not in ("optimizer", "scheduler")}
        # Micro-batches may be cut further: what accumulates beyond the first must have its place from the start.
        config["gradient_accumulation_steps"] = max(2, config["gradient_accumulation_steps"])
        config.pop("train_batch_size", None)
        # The optimizer was looked at above; on the CPU torch's own is as good as DeepSpeed's.
        config |= {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
        if config["bf16"]["enabled"]:
            config["bf16"] = {**config["bf16"], "check_grad_overflow": True}
        self._engine, *_ = deepspeed.initialize(
            model=Called(model.module), optimizer=inner, config=config, dist_init_required=False
        )
        model._engine[:] = [self._engine]
        self._optimizer = inner
        self._state = ZeroState(self._engine.optimizer, inner, self.stage, deepspeed)
        return model

    def make_schedule(self, optimizer: Optimizer, total_steps: int) -> Any:
        chosen = schedule_of(self.config, self._args, total_steps)
        if chosen is None:
            return None
        schedules = _imported(self._args.device, self._local_rank).runtime.lr_schedules
        return getattr(schedules, chosen[0])(optimizer, **chosen[1])

    def _refuse_optimizer(self, optimizer: Optimizer, model: nn.Module) -> None:
        if hasattr(optimizer, "optimizers"):
            raise ValueError("DeepSpeed drives one optimizer, and the Module has several: use backend='ddp' or 'fsdp'.")
        if type(optimizer) not in _ELEMENTWISE and not self.config.get("zero_allow_untested_optimizer"):
            raise ValueError(
                f"ZeRO gives an optimizer slices of many weights laid end to end, and {type(optimizer).__name__} may "
                "need to see each one whole: use AdamW or SGD, or set zero_allow_untested_optimizer=true in the "
                "DeepSpeed configuration if you know that it does not."
            )
        known = {id(parameter) for parameter in model.parameters()}
        if any(id(parameter) not in known for group in optimizer.param_groups for parameter in group["params"]):
            raise ValueError("The optimizer has parameters that are not the model's, which DeepSpeed does not spread.")
        if optimizer.state:
            raise ValueError("optimizers= was given one that has taken steps already: DeepSpeed needs a new one.")

    # ---- one step

    @contextlib.contextmanager
    def micro_batch(self, *, sync: bool) -> Iterator[None]:
        self._engine.set_gradient_accumulation_boundary(sync)
        yield

    def backward(self, loss: Tensor) -> None:
        self._engine.backward(loss, scale_wrt_gas=False)
        self._has_gradients = True

    def reduce(self, backend: Backend, parameters: Sequence[Tensor], extra: Sequence[Tensor]) -> None:
        """The backward passes have done it."""

    def drop_gradients(self, parameters: Sequence[Tensor]) -> None:
        self.recover()

    def recover(self) -> None:
        if self._state is not None and self._has_gradients:
            self._state.forget_gradients()
        self._has_gradients = False

    def update(self, optimizer: Any) -> float | None:
        if not self._has_gradients:
            return 0.0
        self._has_gradients = False
        for own, inner in zip(_groups(optimizer), self._optimizer.param_groups, strict=True):
            inner.update({name: value for name, value in own.items() if name != "params"})
        self._engine.step()
        # It has no gradients and does nothing, but schedules and hooks want to know.
        optimizer.step()
        return float(self._engine.get_global_grad_norm())

    # ---- the whole of it

    @contextlib.contextmanager
    def whole(self, model: nn.Module, optimizer: Any = None, *, keep: bool) -> Iterator[None]:
        if self._state is None:
            # Before training, everything is.
            yield
            return
        with self._state.shown(model, optimizer, keep=keep):
            yield

    @contextlib.contextmanager
    def rewritten(self, model: nn.Module, optimizer: Any = None) -> Iterator[None]:
        if self._state is None:
            yield
            return
        with self._state.rewritten(model, optimizer):
            yield


def _halved(module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """What a model in half precision is given, in half precision too."""
    return _cast(inputs), _cast(kwargs)


def _cast(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(torch.bfloat16) if value.is_floating_point() else value
    if type(value) is dict:
        return {name: _cast(item) for name, item in value.items()}
    return type(value)(_cast(item) for item in value) if type(value) in (list, tuple) else value


def _groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """DeepSpeed leaves out those without a parameter."""
    return [group for group in optimizer.param_groups if group["params"]]


def _twin(optimizer: Optimizer) -> Any:
    """An optimizer of the same kind for DeepSpeed to take apart; the given one keeps the parameters as they are."""
    twin = object.__new__(type(optimizer))
    # A schedule has put a method of its own in the place of ``step``.
    vars(twin).update({name: value for name, value in vars(optimizer).items() if name != "step"})
    twin.param_groups = [dict(group, params=list(group["params"])) for group in _groups(optimizer)]
    twin.state = type(optimizer.state)(dict)
    return twin


def _refuse_model(model: nn.Module) -> None:
    if is_empty(model):
        raise ValueError("The model was made on the meta device, which only backend='fsdp' fills: make it on the CPU.")
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping"):
            raise ValueError("DeepSpeed has spread this model already: make a new one (model_init=) to train again.")
        if parameter.dtype == torch.float64:
            raise ValueError(f"{name} is in float64, and DeepSpeed keeps weights in float32: call model.float() first.")


def _width(model: nn.Module) -> int | None:
    """What transformers' configurations call the hidden size."""
    for part in model.modules():
        config = getattr(part, "config", None)
        for place in (config, getattr(config, "text_config", None)):
            if isinstance(size := getattr(place, "hidden_size", None), int):
                return size
            if sizes := getattr(place, "hidden_sizes", None):
                return max(sizes)
    return None


def _imported(device: torch.device, local_rank: int) -> Any:
    """DeepSpeed, set up for ``device``; what it says about itself is left out."""
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # It asks nobody else.
    os.environ.setdefault("LOCAL_RANK", str(local_rank))
    # Names that torch has given up since.
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    try:
        deepspeed = importlib.import_module("deepspeed")
    except ImportError as error:
        raise ValueError("backend='deepspeed' and deepspeed= need it: pip install 'trainwright[deepspeed]'.") from error
    chatter = logging.getLogger("DeepSpeed")
    if chatter.level == logging.INFO:
        chatter.setLevel(logging.WARNING)
    return deepspeed


def _refuse_other_updates(context: StrategyContext) -> None:
    """Whatever wants to update weights itself, or to work on what DeepSpeed keeps to itself."""
    if context.optimizes_by_hand:
        raise ValueError(
            "DeepSpeed updates weights itself, and a Module with automatic_optimization=False wants to: use "
            "backend='ddp'."
        )
    for modifier in context.modifiers:
        own = ("shape_gradients", "before_update", "after_update", "extra_parameters")
        touches = any(getattr(type(modifier), name) is not getattr(Modifier, name, None) for name in own)
        if touches or modifier.changes_graph or modifier.changes_structure or modifier.needs_whole_tensors:
            raise ValueError(
                f"The recipe's {type(modifier).__name__} works on gradients or weights, which DeepSpeed keeps in "
                "buffers of its own: use backend='fsdp' or 'ddp'."
            )
