"""A part of every parameter in each process: torch's FSDP2 (``fully_shard``)."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from trainwright.config.arguments import TrainingArguments
from trainwright.config.parallel import Sharding, sharding_of, without_effect
from trainwright.config.warnings import TrainwrightWarning
from trainwright.core.backend import Backend
from trainwright.core.dtensors import is_dtensor, whole
from trainwright.engines.torch.module import main_model
from trainwright.engines.torch.strategies.base import Strategy, StrategyContext
from trainwright.engines.torch.strategies.blocks import blocks_of, checkpoint_activations
from trainwright.engines.torch.strategies.empty import fill
from trainwright.engines.torch.strategies.tensors import cut_layers
from trainwright.engines.torch.targets import unwrap

logger = logging.getLogger("trainwright")


class ShardedFSDP(Strategy):
    """Blocks of the model are put together just before they are used, and taken apart again afterwards."""

    name = "fsdp"
    is_sharded = runs_in_step = sums_in_backward = places_model = True

    @classmethod
    def made_for(cls, context: StrategyContext) -> Strategy:
        _refuse_what_needs_whole_weights(context)
        args = context.args
        return cls(
            sharding_of(args),
            args.device,
            half=torch.bfloat16 if args.bf16 else None,
            seed=args.seed,
            compile_block=partial(_compile, args=args) if args.torch_compile else None,
            tensors=args.tensor_parallel_size,
        )

    def __init__(
        self,
        options: Sharding,
        device: torch.device,
        *,
        half: torch.dtype | None = None,
        seed: int = 0,
        compile_block: Any = None,
        tensors: int = 1,
    ) -> None:
        self.options, self.device, self.half, self.seed = options, device, half, seed
        self._compile_block = compile_block
        #: Processes that compute single layers together. Each counts the same targets, so each weighs less.
        self.copies = tensors
        self.gradient_factor = float(tensors)
        #: The model once it is sharded, which makes it an FSDPModule besides what it was.
        self._roots: list[Any] = []

    def spread(self, model: nn.Module, backend: Backend, called: nn.Module | None = None) -> nn.Module:
        root = main_model(model) if unwrap(model) is main_model(model) else model
        if isinstance(root, FSDPModule):
            # A second training of the same model.
            self._roots = [root]
            self.settle()
            return model
        generator = torch.Generator().manual_seed(self.seed)
        mesh = _mesh(self.device, backend, hybrid=self.options.hybrid, tensors=self.copies)
        if self.copies > 1:
            self._load(root, root, backend, generator)
            cut_layers(root, mesh["tensor"])
            mesh = mesh["shard"]
        policy: dict[str, Any] = {
            "mesh": mesh,
            "reshard_after_forward": self.options.reshard_after_forward,
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=self.half, reduce_dtype=None if self.half is None else torch.float32
            ),
            "offload_policy": CPUOffloadPolicy(pin_memory=self.device.type != "cpu")
            if self.options.offload
            else OffloadPolicy(),
        }
        blocks = blocks_of(root, self.options.blocks, self.options.min_parameters)
        _refuse_unsuitable([*blocks, root])
        if self.options.activation_checkpointing:
            checkpoint_activations(root, blocks)
        for block in blocks:
            self._load(block, root, backend, generator)
            if self._compile_block is not None:
                self._compile_block(block)
            fully_shard(block, **policy)
        self._load(root, root, backend, generator)
        # The model's own parameters are needed again at once in the backward pass.
        if blocks:
            policy["reshard_after_forward"] = False
        fully_shard(root, **policy)
        self._roots = [root]
        for part in root.modules():
            if isinstance(part, FSDPModule):
                # Sums, not means: each process has weighted its gradient by its share of the targets.
                part.set_gradient_divide_factor(1.0)
                # NCCL could scale while it sums; other libraries sum and nothing else.
                part.set_force_sum_reduction_for_comms(True)
        logger.info("FSDP2: %d blocks over %s.", len(blocks), "x".join(str(size) for size in mesh.shape))
        return model

    def _load(self, part: nn.Module, root: nn.Module, backend: Backend, generator: torch.Generator) -> None:
        """Parameters of ``part`` that are not sharded yet, with the first process's values, on the device."""
        fill(part, root, self.device, generator)
        own = [p for p in part.parameters() if not is_dtensor(p)]
        backend.share([*own, *part.buffers()])

    @contextlib.contextmanager
    def micro_batch(self, *, sync: bool) -> Iterator[None]:
        for root in self._roots:
            root.set_requires_gradient_sync(sync)
            root.set_is_last_backward(sync)
        yield

    @contextlib.contextmanager
    def called_in_parts(self) -> Iterator[None]:
        # Blocks come together when they are called; what belongs to no block does when the model is.
        for root in self._roots:
            # Whoever is called first is taken for the root; there is no public way to say who it is.
            fully_shard.state(root)._lazy_init()  # type: ignore[attr-defined]
            root.unshard()
        try:
            yield
        finally:
            for root in self._roots:
                root.reshard()

    def settle(self) -> None:
        # What belongs to no block stays whole after a forward pass, since a backward pass needs it first.
        for root in self._roots:
            root.reshard()

    def recover(self) -> None:
        for root in self._roots:
            for part in root.modules():
                if isinstance(part, FSDPModule):
                    _forget_gradients(part)

    def reduce(self, backend: Backend, parameters: Sequence[Tensor], extra: Sequence[Tensor]) -> None:
        if extra:
            backend.reduce_gradients(extra)

    def update(self, optimizer: Any) -> float | None:
        try:
            return super().update(optimizer)
        except RuntimeError as error:
            if "mixed torch.Tensor and DTensor" not in str(error):
                raise
            raise ValueError(
                f"{type(optimizer).__name__} does not work on parameters that are sharded over processes: use one of "
                "torch's own (optim='adamw_torch', 'sgd', 'adagrad', 'rmsprop'), or backend='ddp'."
            ) from error

    def clip(self, parameters: Sequence[Tensor], most: float) -> Tensor:
        norm = self.norm([p.grad for p in parameters if p.grad is not None])
        with torch.no_grad():
            factor = torch.clamp(most / (norm + 1e-6), max=1.0)
            for parameter in parameters:
                if parameter.grad is not None:
                    gradient = local_part(parameter.grad)
                    gradient.mul_(factor.to(gradient.device))
        return norm

    def norm(self, gradients: Sequence[Any]) -> Tensor:
        """Squares are summed over the parts of a tensor wherever they are; kept together by how they are spread."""
        groups: dict[Any, list[Tensor]] = {}
        for gradient in gradients:
            key = (gradient.device_mesh, gradient.placements) if is_dtensor(gradient) else None
            groups.setdefault(key, []).append(gradient)
        norms = [whole(nn.utils.get_total_norm(group)) for group in groups.values()]
        if not norms:
            return torch.zeros((), device=self.device)
        return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))


def _mesh(device: torch.device, backend: Backend, *, hybrid: bool, tensors: int) -> DeviceMesh:
    kind = device.type
    if tensors > 1:
        if hybrid:
            raise ValueError("hybrid sharding and tensor_parallel_size do not go together: use full_shard.")
        # Neighbours, on one machine if possible: they talk in every layer.
        return init_device_mesh(kind, (backend.world_size // tensors, tensors), mesh_dim_names=("shard", "tensor"))
    if not hybrid:
        return init_device_mesh(kind, (backend.world_size,), mesh_dim_names=("shard",))
    here = max(int(value) for value in backend.gather(backend.local_rank)) + 1
    if backend.world_size % here:
        raise ValueError(
            f"hybrid sharding wants as many processes on every machine, but there are {backend.world_size} and "
            f"{here} on the largest: use full_shard."
        )
    return init_device_mesh(kind, (backend.world_size // here, here), mesh_dim_names=("copy", "shard"))


def _forget_gradients(part: FSDPModule) -> None:
    """Gradients of whole parameters, which wait there until they are summed; no optimizer knows of them."""
    part.reshard()
    # There is no public way to them.
    group = fully_shard.state(part)._fsdp_param_group  # type: ignore[attr-defined]
    for parameter in group.fsdp_params if group is not None else ():
        parameter.unsharded_accumulated_grad = None
        if hasattr(parameter, "_unsharded_param"):
            parameter._unsharded_param.grad = None


def _refuse_unsuitable(groups: list[nn.Module]) -> None:
    """Before anything is moved: torch would say it in the middle of the first step, without names."""
    seen: set[nn.Parameter] = set()
    for group in groups:
        first: tuple[str, nn.Parameter] | None = None
        for name, parameter in group.named_parameters():
            if parameter in seen or not parameter.requires_grad:
                continue
            seen.add(parameter)
            first = first or (name, parameter)
            if parameter.dtype != first[1].dtype:
                raise ValueError(
                    f"backend='fsdp' gathers {type(group).__name__} at once, so what is trained in it must have one "
                    f"dtype: {first[0]} is {first[1].dtype}, {name} is {parameter.dtype}. Cast the model "
                    "(model.to(torch.float32)), or use backend='ddp'."
                )
    for name, module in groups[-1].named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise ValueError(
                f"backend='fsdp' cannot sum sparse gradients: build {name or 'the model'} with sparse=False, or use "
                "backend='ddp'."
            )


def local_part(tensor: Any) -> Tensor:
    """What this process has of ``tensor``."""
    return tensor.to_local() if is_dtensor(tensor) else tensor


def _refuse_what_needs_whole_weights(context: StrategyContext) -> None:
    args = context.args
    if context.optimizes_by_hand:
        raise ValueError(
            "FSDP shards gradients while they are computed, and a Module with automatic_optimization=False takes them "
            "in its own hands: use backend='ddp'."
        )
    if args.ddp_backend == "gloo" and args.device.type == "cuda":
        raise ValueError(
            "FSDP with ddp_backend='gloo' on a GPU crashes inside torch (seen with 2.11): leave ddp_backend out, with "
            "one process to a GPU, or use backend='ddp'."
        )
    if context.has_checkpointer:
        raise ValueError(
            "checkpointer= is given whole checkpoints, and with FSDP no process has one: leave it out, or use "
            "backend='ddp'."
        )
    if args.checkpoint_format == "hf":
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
        warnings.warn(f"fsdp_config: {name} has no effect: {reason}.", TrainwrightWarning, stacklevel=5)


def _compile(block: nn.Module, args: TrainingArguments) -> None:
    block.compile(backend=args.torch_compile_backend or "inductor", mode=args.torch_compile_mode)
