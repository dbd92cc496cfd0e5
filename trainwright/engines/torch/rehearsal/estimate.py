"""Memory of one GPU for each way to spread a training over several, before any GPU is there."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from trainwright.config.arguments import TrainingArguments
from trainwright.config.fields import ours
from trainwright.config.parallel import Sharding, is_on, sharding_of
from trainwright.engines.torch.losses import loss_of
from trainwright.engines.torch.model_setup import enable_gradient_checkpointing
from trainwright.engines.torch.module import loss_in, main_model, module_in
from trainwright.engines.torch.optim import build_optimizer, parse_optim_args
from trainwright.engines.torch.rehearsal.step import Found, Loss, Rehearsal, rehearse
from trainwright.engines.torch.strategies.blocks import blocks_of, checkpoint_activations
from trainwright.engines.torch.targets import count_rows, is_mapping

logger = logging.getLogger("trainwright")

#: What libraries take from torch's own allocator: cuBLAS has a work space for each thread that multiplies matrices.
WORKSPACES = 2 * 32 * 2**20
#: What a process takes besides: CUDA's own context and code, and NCCL's channels where there are several.
CONTEXT, NCCL = 600 * 2**20, 500 * 2**20
#: Holes between tensors, as a share of what comes and goes in a step.
FRAGMENTATION = 0.05
#: Bytes of state for each trained number, of optimizers whose kernels run on a GPU only.
_STATE_BYTES = {"8bit": 2.1, "4bit": 1.1, "paged": 0.0, "lion": 4.0, "lomo": 0.0, "apollo": 1.0, "galore": 2.0}
#: DeepSpeed's defaults, in numbers: gradients exchanged at once, and parameters that ZeRO 3 keeps whole.
_BUCKET, _LIVE = 500_000_000, 1_000_000_000

STRATEGIES = (
    "sp",
    "ddp",
    "fsdp full_shard",
    "fsdp shard_grad_op",
    "fsdp full_shard offload",
    "deepspeed zero 1",
    "deepspeed zero 2",
    "deepspeed zero 3",
)


@dataclass(frozen=True)
class Estimate:
    """Bytes on one GPU, and on its machine for each GPU."""

    strategy: str
    #: Whether blocks are run again in the backward pass instead of keeping what is inside of them.
    recompute: bool
    #: What torch holds when it holds most, by what it is for.
    parts: dict[str, int]
    #: What is needed besides, by what it is for.
    besides: dict[str, int] = field(default_factory=dict)
    #: Main memory that takes the place of memory on the GPU.
    host: int = 0

    @property
    def allocated(self) -> int:
        """What ``torch.cuda.max_memory_allocated()`` should come to."""
        return sum(self.parts.values())

    @property
    def total(self) -> int:
        """What the GPU must have."""
        return self.allocated + sum(self.besides.values())


def estimate_memory(
    model: nn.Module,
    args: TrainingArguments,
    batch: object,
    *,
    gpus: int = 1,
    loss: Loss | None = None,
    strategies: Iterable[str] | None = None,
    recompute: Iterable[bool] = (False, True),
) -> list[Estimate]:
    """One estimate for each strategy, without and with recomputation where the model has blocks to recompute.

    ``batch`` is what one process computes at once. A step is tried on tensors without numbers, so nothing is large and
    no GPU is needed; ``model`` is not touched, and may have been made on the meta device.

    >>> from trainwright.config.arguments import TrainingArguments
    >>> net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2))
    >>> args = TrainingArguments(output_dir="x", use_cpu=True, report_to="none")
    >>> found = estimate_memory(net, args, (torch.zeros(8, 512), torch.zeros(8, dtype=torch.long)), recompute=[False])
    >>> one = next(one for one in found if one.strategy == "sp")
    >>> one.parts["weights"], one.parts["optimizer"] // one.parts["weights"]
    (1055232, 2)
    """
    wanted = list(STRATEGIES if strategies is None else strategies)
    wanted = [name for name in wanted if name != ("sp" if gpus > 1 else "ddp")]
    estimator = _Estimator(model, args, batch, gpus, loss or default_loss)
    return [
        found
        for again in recompute
        for name in wanted
        if (found := estimator.estimate(name, recompute=again)) is not None
    ]


class _Estimator:
    def __init__(self, model: nn.Module, args: TrainingArguments, batch: object, gpus: int, loss: Loss) -> None:
        self.model, self.args, self.gpus, self.loss = model, args, gpus, loss
        self.half = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None
        self.pieces, self.batch = _micro_batch(args, batch)
        self.sharding = sharding_of(args) if is_on(args.fsdp) else Sharding()
        self._tried: dict[tuple[bool, bool, int], Found] = {}
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.numbers = sum(parameter.numel() for parameter in model.parameters())
        self.trained = sum(parameter.numel() for parameter in trained)
        self.weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())

    def estimate(self, strategy: str, *, recompute: bool) -> Estimate | None:
        if recompute and not self._can_recompute():
            return None
        if strategy in ("sp", "ddp"):
            found = self._try(recompute, sharded=False)
            return self._weighed(strategy, recompute, _most(found.at_peak, self._replicated_update(found)))
        if strategy.startswith("fsdp"):
            return self._fsdp(strategy, recompute)
        return self._deepspeed(strategy, recompute)

    def _fsdp(self, strategy: str, recompute: bool) -> Estimate:
        whole, found = self._try(False, sharded=False), self._try(recompute, sharded=True)
        offload = "offload" in strategy
        parts = dict(found.at_peak)
        gathered = self._gathered(parts.pop("whole_weights", 0), keeps_all="shard_grad_op" in strategy)
        state = self._state(whole) // self.gpus
        stored = {"weights": self.weights // self.gpus, "optimizer": state}
        # Nothing is gathered any more when weights are updated, and all gradients are there.
        update = {**stored, "gradients": 4 * self.trained // self.gpus, "temporary": whole.update // self.gpus}
        if offload:
            parts.pop("gradients", None)
            best = {**parts, "gathered": gathered}
        else:
            parts["weights"] = parts.get("weights", 0) + stored["weights"]
            best = _most({**parts, "optimizer": state, "gathered": gathered}, update)
        host = sum(update.values()) if offload else 0
        return self._weighed(strategy, recompute, best, host=host)

    def _gathered(self, whole: int, *, keeps_all: bool) -> int:
        """Whole parameters: those outside of blocks all the time, besides the block at work and those on their way."""
        blocks = [sum(p.numel() for p in group) for group in self._groups(self.model)[:-1]]
        largest = max(blocks, default=0) * whole // max(self.numbers, 1)
        outside = whole - sum(blocks) * whole // max(self.numbers, 1)
        if keeps_all:
            return whole + (largest if self.gpus > 1 else 0)
        return outside + largest * (3 if self.gpus > 1 else 1)

    def _deepspeed(self, strategy: str, recompute: bool) -> Estimate:
        """Weights and gradients in half precision; main weights in float32 and the optimizer's state in parts."""
        whole, found = self._try(False, sharded=False), self._try(recompute, sharded=True)
        stage = int(strategy[-1])
        parts = {kind: size for kind, size in found.at_peak.items() if kind not in ("whole_weights", "gradients")}
        size = 2 if self.half is not None else 4
        main = 4 * self.trained if self.half is not None else 0
        parts["optimizer"] = (self._state(whole) + main) // self.gpus
        parts["gradients"] = size * self.trained // (self.gpus if stage > 1 else 1)
        parts["communication"] = 2 * size * min(_BUCKET, self.trained) if self.gpus > 1 else 0
        parts["weights"] = parts.get("weights", 0) + size * self.numbers // (self.gpus if stage == 3 else 1)
        if stage == 3:
            parts["gathered"] = size * min(_LIVE, self.numbers)
        return self._weighed(strategy, recompute, parts)

    def _replicated_update(self, found: Found) -> dict[str, int]:
        gradients = sum(p.numel() * p.element_size() for p in self.model.parameters() if p.requires_grad)
        return {
            "weights": found.at_peak.get("weights", self.weights),
            "optimizer": self._state(found),
            "gradients": gradients,
            "temporary": found.update,
        }

    def _weighed(self, strategy: str, recompute: bool, parts: dict[str, int], host: int = 0) -> Estimate:
        parts = {**{kind: size for kind, size in sorted(parts.items()) if size > 0}, "workspaces": WORKSPACES}
        coming = sum(parts.get(kind, 0) for kind in ("activations", "half_weights", "temporary", "gathered"))
        besides = {"fragmentation": int(FRAGMENTATION * coming), "context": CONTEXT}
        if self.gpus > 1:
            besides["nccl"] = NCCL
        return Estimate(strategy, recompute, parts, besides, host)

    # ---- trying

    def _try(self, recompute: bool, *, sharded: bool) -> Found:
        key = (recompute, sharded, self.gpus)
        if key not in self._tried:
            plan = Rehearsal(self.model, self.batch, self.loss, self.half, pieces=self.pieces, share=self.gpus)
            plan.change = self._recompute if recompute else None
            plan.groups = self._groups if sharded else None
            plan.optimizer = self._optimizer
            found = self._tried[key] = rehearse(plan)
            if found.untried is not None:
                found.at_peak["optimizer"] = found.state = self._state(found)
        return self._tried[key]

    def _state(self, found: Found) -> int:
        if found.untried is None:
            return found.state
        name = str(getattr(self.args.optim, "value", self.args.optim))
        each = next((size for part, size in _STATE_BYTES.items() if part in name), 8.0)
        logger.info("optim=%r cannot be tried without a GPU; %.3g bytes a number are assumed.", name, each)
        return int(each * self.trained)

    def _optimizer(self, model: nn.Module) -> Any:
        optimizer = build_optimizer(model, self.args)
        options = parse_optim_args(self.args.optim_args)
        for group in optimizer.param_groups:
            # On a GPU torch's optimizers work on all tensors at once unless they are told otherwise.
            if "foreach" in group and group["foreach"] is None and not group.get("fused"):
                group["foreach"] = bool(options.get("foreach", True))
        return optimizer

    def _can_recompute(self) -> bool:
        network = main_model(self.model)
        if callable(getattr(network, "gradient_checkpointing_enable", None)):
            return bool(getattr(network, "supports_gradient_checkpointing", True))
        return bool(self._blocks(network))

    def _recompute(self, model: nn.Module) -> None:
        network = main_model(model)
        if callable(getattr(network, "gradient_checkpointing_enable", None)):
            enable_gradient_checkpointing(network, self.args.gradient_checkpointing_kwargs)
        else:
            checkpoint_activations(network, self._blocks(network))

    def _blocks(self, network: nn.Module) -> list[nn.Module]:
        return blocks_of(network, self.sharding.blocks, self.sharding.min_parameters)

    def _groups(self, model: nn.Module) -> list[list[nn.Parameter]]:
        """Parameters of each block, and at last of the rest."""
        groups, seen = [], set[int]()
        for block in self._blocks(main_model(model)):
            group = [parameter for parameter in block.parameters() if id(parameter) not in seen]
            seen |= {id(parameter) for parameter in group}
            groups.append(group)
        return [*groups, [parameter for parameter in model.parameters() if id(parameter) not in seen]]


def _most(*moments: dict[str, int]) -> dict[str, int]:
    return max(moments, key=lambda parts: sum(parts.values()))


def _micro_batch(args: TrainingArguments, batch: object) -> tuple[int, Any]:
    """How many of them a step has (at least), and what runs at once."""
    pieces, rows, limit = args.gradient_accumulation_steps, count_rows(batch), ours(args).micro_batch
    if isinstance(limit, int) and limit < rows:
        return pieces * -(-rows // limit), tree_map(
            lambda value: value[:limit] if isinstance(value, Tensor) and value.ndim else value, batch
        )
    return pieces, batch


def default_loss(model: nn.Module, batch: Any) -> Tensor:
    """The model's own loss, or the plain one for its outputs, as a Trainer takes it."""
    module = module_in(model)
    if module is not None:
        loss = loss_in(module.training_step(batch))
        assert loss is not None
        return loss
    if is_mapping(batch):
        inputs = dict(batch)
        try:
            return loss_of(model(**inputs), inputs.get("labels"), inputs)
        except TypeError:
            # Bare networks take no labels.
            labels = inputs.pop("labels", None)
            return loss_of(model(**inputs), labels, inputs)
    *values, labels = batch
    return loss_of(model(*values), labels, values)
