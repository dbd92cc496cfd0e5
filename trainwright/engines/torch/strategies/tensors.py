"""Tensor parallelism: single layers computed by several processes, for models that carry a plan of how to cut them."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

#: Words of transformers' plans, and of our own ``tensor_parallel_plan``.
_STYLES = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
    "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
    "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
    "rowwise_rep": lambda: RowwiseParallel(input_layouts=Replicate()),
    "rowwise_split_input": lambda: RowwiseParallel(input_layouts=Replicate()),
}
#: Numbers in a configuration that are shared out, and so must be divisible.
_SHARED_OUT = ("num_attention_heads", "num_key_value_heads", "intermediate_size")


def plan_of(model: nn.Module, processes: int) -> dict[str, str]:
    """The model's plan: layers (``*`` for any one name) and how each is cut; refused where it cannot be followed."""
    plan: Any = getattr(model, "tensor_parallel_plan", None) or getattr(model, "_tp_plan", None)
    if not plan:
        raise ValueError(
            f"tensor_parallel_size={processes}, but {type(model).__name__} carries no plan of how its layers are cut: "
            'give it an attribute tensor_parallel_plan, like {"layers.*.up": "colwise", "layers.*.down": "rowwise"}, '
            "or use fsdp alone."
        )
    plan = dict(plan)
    unknown = sorted({word for word in plan.values() if word not in _STYLES})
    if unknown:
        raise ValueError(
            f"tensor_parallel_size={processes}: the plan of {type(model).__name__} has {', '.join(unknown)}, which is "
            f"not supported; {', '.join(_STYLES)} are."
        )
    config = getattr(model, "config", None)
    for name in _SHARED_OUT if not hasattr(model, "tensor_parallel_plan") else ():
        count = getattr(config, name, None)
        if isinstance(count, int) and count % processes:
            raise ValueError(f"tensor_parallel_size={processes} does not divide the model's {name}={count}.")
    if _shares_weights(model) or getattr(config, "vocab_size", 0) % processes:
        # Cut on their own, the two ends of one weight would become two.
        plan = {name: word for name, word in plan.items() if not name.endswith(("lm_head", "embed_tokens"))}
    return plan


def _shares_weights(model: nn.Module) -> bool:
    named = [id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False)]
    return len(named) != len(set(named))


def cut_layers(model: nn.Module, mesh: DeviceMesh) -> None:
    """Cut the layers that the model's plan names over ``mesh``, which has one dimension."""
    styles: dict[str, ParallelStyle] = {name: _STYLES[word]() for name, word in plan_of(model, mesh.size()).items()}
    parallelize_module(model, mesh, styles)
