"""Which strategy a Trainer spreads its model with, and what does not go together with it."""

from __future__ import annotations

import logging
import warnings
from functools import partial
from typing import Any

import torch
from torch import nn

from trainwright.config.arguments import TrainingArguments
from trainwright.config.fields import ours
from trainwright.config.parallel import sharding_of, way_of, without_effect
from trainwright.config.registry import find
from trainwright.config.warnings import TrainwrightWarning
from trainwright.core.modifier import Modifier
from trainwright.engines.torch.backends import DistributedProcesses
from trainwright.engines.torch.ema import EMACallback
from trainwright.engines.torch.strategies.base import Strategy
from trainwright.engines.torch.strategies.ddp import OverlappedDDP, Replication, may_overlap, on_one_device
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")


def choose_strategy(setup: Setup, *, by_hand: bool) -> Strategy:
    """The strategy that the arguments ask for; whatever cannot go with it is refused here, before any work."""
    args, backend = setup.args, setup.backend
    way = way_of(args) or ("ddp" if backend.world_size > 1 else "sp")
    found = find("strategy", way, "backend")
    if not isinstance(found, type):
        return found(setup, by_hand=by_hand)
    if not issubclass(found, Strategy):
        raise ValueError(
            f"backend={way!r} is {found.__name__}, which is no subclass of {Strategy.__module__}.Strategy."
        )
    return found.from_arguments(args)


def replicated(setup: Setup, *, by_hand: bool) -> Strategy:
    """A copy of the model in every process, its gradients summed during the backward pass where they can be."""
    args, backend = setup.args, setup.backend
    if backend.world_size == 1 or type(backend) is not DistributedProcesses:
        return Strategy()
    reason = _why_afterwards(setup, by_hand=by_hand)
    if reason is not None:
        logger.info("Gradients are summed after a step's last backward pass, not during it: %s.", reason)
        return Strategy()
    options = Replication(
        find_unused=args.ddp_find_unused_parameters,
        static_graph=args.ddp_static_graph,
        bucket_megabytes=args.ddp_bucket_cap_mb,
    )
    return OverlappedDDP(options)


def _why_afterwards(setup: Setup, *, by_hand: bool) -> str | None:
    """None, or why DistributedDataParallel cannot sum gradients while a backward pass runs."""
    if by_hand:
        return "the Module optimizes by hand"
    if setup.args.micro_batch == "auto":
        return 'micro_batch="auto" may have to do a step again'
    for modifier in setup.modifiers:
        if modifier.changes_graph or modifier.changes_structure or modifier.needs_whole_tensors:
            return f"the recipe's {type(modifier).__name__} changes what takes part in a step"
    if setup.model is None:
        return None
    if not on_one_device(setup.model):
        return "the model is on several devices"
    return may_overlap(setup.model)


def sharded(setup: Setup, *, by_hand: bool) -> Strategy:
    """FSDP2, with everything refused that needs whole weights or gradients."""
    from trainwright.engines.torch.strategies.fsdp import ShardedFSDP

    args = setup.args
    if by_hand:
        raise ValueError(
            "FSDP shards gradients while they are computed, and a Module with automatic_optimization=False takes them "
            "in its own hands: use backend='ddp'."
        )
    if args.ddp_backend == "gloo" and args.device.type == "cuda":
        raise ValueError(
            "FSDP with ddp_backend='gloo' on a GPU crashes inside torch (seen with 2.11): leave ddp_backend out, with "
            "one process to a GPU, or use backend='ddp'."
        )
    if setup.checkpointer is not None:
        raise ValueError(
            "checkpointer= is given whole checkpoints, and with FSDP no process has one: leave it out, or use "
            "backend='ddp'."
        )
    if ours(args).checkpoint_format == "hf":
        raise ValueError(
            "checkpoint_format='hf' needs the whole optimizer in one place, and FSDP has it in parts: leave it out; "
            "from_pretrained reads the model of these checkpoints too."
        )
    if args.fp16:
        raise ValueError("fp16=True needs a scaler that looks at whole gradients: with FSDP use bf16=True.")
    for name in ("fp16_full_eval", "bf16_full_eval"):
        if getattr(args, name):
            raise ValueError(
                f"{name}=True evaluates a copy of the model, and FSDP's parameters are in parts: unset it."
            )
    if args.gradient_checkpointing and sharding_of(args).activation_checkpointing:
        raise ValueError("gradient_checkpointing and fsdp_config's activation_checkpointing are the same: keep one.")
    for name, reason in without_effect(args.fsdp_config).items():
        warnings.warn(f"fsdp_config: {name} has no effect: {reason}.", TrainwrightWarning, stacklevel=4)
    return ShardedFSDP(
        sharding_of(args),
        args.device,
        half=torch.bfloat16 if args.bf16 else None,
        seed=args.seed,
        compile_block=partial(_compile, args=args) if args.torch_compile else None,
        tensors=ours(args).tensor_parallel_size,
    )


def by_deepspeed(setup: Setup, *, by_hand: bool) -> Strategy:
    """ZeRO, with everything refused that wants to update weights itself."""
    from trainwright.engines.torch.strategies.deepspeed import deepspeed_strategy

    if by_hand:
        raise ValueError(
            "DeepSpeed updates weights itself, and a Module with automatic_optimization=False wants to: use "
            "backend='ddp'."
        )
    for modifier in setup.modifiers:
        own = ("shape_gradients", "before_update", "after_update", "extra_parameters")
        touches = any(getattr(type(modifier), name) is not getattr(Modifier, name, None) for name in own)
        if touches or modifier.changes_graph or modifier.changes_structure or modifier.needs_whole_tensors:
            raise ValueError(
                f"The recipe's {type(modifier).__name__} works on gradients or weights, which DeepSpeed keeps in "
                "buffers of its own: use backend='fsdp' or 'ddp'."
            )
    return deepspeed_strategy(setup.args)


def refuse_for_strategy(setup: Setup) -> None:
    """Callbacks that want whole weights, where no process has them between steps."""
    if not setup.engine.weights.layout.empty_between_passes:
        return
    for callback in setup.callbacks.callbacks:
        if isinstance(callback, EMACallback):
            raise ValueError(
                "EMACallback averages weights, and with ZeRO stage 3 no process has them between steps: use stage 2, "
                "or backend='fsdp'."
            )


def _compile(block: nn.Module, args: TrainingArguments) -> None:
    block.compile(backend=args.torch_compile_backend or "inductor", mode=args.torch_compile_mode)


def spreads_by_itself(args: TrainingArguments) -> bool:
    """Whether the strategy brings the model to the device, part by part: whole it may not fit."""
    return way_of(args) in ("fsdp", "deepspeed")


def adopt_sharded_parameters(optimizer: Any, before: dict[str, nn.Parameter], model: nn.Module) -> None:
    """Give an optimizer that was made for the whole model the parts that took its parameters' place."""
    if optimizer.state:
        raise ValueError(
            "optimizers= was given one that has taken steps already, and FSDP replaces the parameters it knows: pass "
            "a new one, or optimizer_cls_and_kwargs=."
        )
    now = dict(model.named_parameters())
    new = {id(old): now[name] for name, old in before.items()}
    for group in optimizer.param_groups:
        group["params"] = [new.get(id(parameter), parameter) for parameter in group["params"]]
