"""Blocks that occur again and again in a network, compiled once for all of them.

A block alone takes seconds to compile where the whole network takes minutes, and it is given what the network's own
code makes for it: a causal mask that is left to the attention kernel stays left to it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from trainwright.engines.torch.acceleration.call import Call
from trainwright.engines.torch.acceleration.technique import Situation, Undo

#: Steps x square root of the parameters from which on seconds of compiling are repaid: some 150 steps of 124 million
#: parameters, 50 of a billion, 1700 of a million.
REPAID_FROM = 1.7e6


def repeated_blocks(network: nn.Module) -> list[nn.Module]:
    """Entries of the network's lists of layers that have the same structure as another entry.

    >>> layers = [nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(3)]
    >>> len(repeated_blocks(nn.Sequential(nn.Linear(1, 2), *layers, nn.Linear(2, 1))))
    3
    """
    found: list[nn.Module] = []
    _collect(network, found)
    entries = list(dict.fromkeys(found))
    structures = {id(entry): _structure(entry) for entry in entries}
    counts = Counter(structures.values())
    return [entry for entry in entries if counts[structures[id(entry)]] > 1]


def _collect(module: nn.Module, entries: list[nn.Module]) -> None:
    """The outermost entries of lists; a list within a list is one more list where it holds blocks of its own."""
    for child in module.children():
        if _is_list(module) and _is_composite(child) and not (_is_list(child) and _holds_blocks(child)):
            entries.append(child)
        else:
            _collect(child, entries)


def _is_list(module: nn.Module) -> bool:
    return isinstance(module, (nn.ModuleList, nn.Sequential))


def _holds_blocks(module: nn.Module) -> bool:
    return sum(_is_composite(child) for child in module.children()) > 1


def _is_composite(module: nn.Module) -> bool:
    """More than one operation: a single layer gains nothing."""
    return any(True for _ in module.parameters()) and sum(1 for _ in module.modules()) > 2


def _structure(module: nn.Module) -> tuple[Any, ...]:
    """What two modules have in common that one compilation serves."""
    kinds = tuple(type(part) for part in module.modules())
    tensors = (*module.named_parameters(), *module.named_buffers())
    return kinds, tuple((name, tensor.shape, tensor.dtype, tensor.requires_grad) for name, tensor in tensors)


class CompiledBlocks:
    name = "blocks"
    says = "repeated blocks are compiled"
    changes_bits = True
    is_visible = False
    is_proven = True
    is_compiled = True
    pays_on_cpu = False

    def __init__(self, backend: str = "inductor") -> None:
        self._backend = backend

    def why_not(self, situation: Situation) -> str | None:
        if situation.layout not in ("sp", "ddp"):
            return f"compiled blocks do not go with {situation.layout} yet"
        if "torch_compile" in situation.settings:
            return "torch_compile=True compiles the whole network"
        if not repeated_blocks(situation.network):
            return "the network has no repeated blocks"
        if situation.memory_budget is not None and getattr(situation.network, "is_gradient_checkpointing", False):
            return "its layers are computed again already (gradient_checkpointing_enable)"
        if any(is_compiled_by_others(block) for block in repeated_blocks(situation.network)):
            return "its blocks are compiled already"
        is_wanted = situation.is_asked_for or situation.memory_budget is not None
        if not is_wanted and situation.steps * math.sqrt(situation.parameters) < REPAID_FROM:
            return "the run is too short to repay the time that compiling takes"
        return None

    def why_not_for(self, call: Call) -> str | None:
        return None

    def install(self, situation: Situation) -> Undo:
        _forget_another_budget(situation.memory_budget)
        settings = ExitStack()
        settings.enter_context(compiler_settings(situation.memory_budget))
        start_compilers(situation.device)
        blocks = repeated_blocks(situation.network)
        for block in blocks:
            block._compiled_call_impl = _in_training(block, self._backend, dynamic=situation.lengths_vary)

        def undo() -> None:
            for block in blocks:
                block._compiled_call_impl = None
            settings.close()

        return undo


#: What this process compiled blocks with last: torch would use the same code again, whatever is wanted now.
_last_budget: list[float | None] = [None]


def _forget_another_budget(wanted: float | None) -> None:
    if _last_budget[0] != wanted:
        torch.compiler.reset()
        _last_budget[0] = wanted


def is_compiled_by_others(module: nn.Module) -> bool:
    """Whether something stands in place of its own call that was not put there by :class:`CompiledBlocks`."""
    return module._compiled_call_impl is not None and not hasattr(module._compiled_call_impl, "is_of_compiled_blocks")


def _in_training(block: nn.Module, backend: str, *, dynamic: bool) -> Callable[..., Any]:
    """A call of ``block``: compiled where gradients are wanted. Evaluation has shapes of its own and does without.

    nn.Module calls it in place of its own call, hooks included; a copy of the block does not take it along.
    """
    compiled = torch.compile(block._call_impl, backend=backend, dynamic=dynamic)

    def call(*args: Any, **kwargs: Any) -> Any:
        fast = block.training and torch.is_grad_enabled() and not torch.compiler.is_compiling()
        return (compiled if fast else block._call_impl)(*args, **kwargs)

    call.is_of_compiled_blocks = True  # type: ignore[attr-defined]
    return call


def compiler_settings(memory_budget: float | None = None) -> Any:
    """How everything is compiled here: the same kernels in each run, whatever was seen before."""
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor
    from torch.fx.experimental import _config as symbols

    stack = ExitStack()
    # A hook that somebody hangs on a layer later must be heard.
    wanted: list[tuple[Any, dict[str, Any]]] = [
        (dynamo, {"skip_nnmodule_hook_guards": False, "recompile_limit": 32}),
        (inductor, {"deterministic": True}),
        (symbols, {"use_duck_shape": False}),
        (functorch, {} if memory_budget is None else {"activation_memory_budget": memory_budget}),
    ]
    for config, values in wanted:
        known = {name: value for name, value in values.items() if hasattr(config, name)}
        stack.enter_context(config.patch(**known))
    return stack


def start_compilers(device: torch.device) -> None:
    """Begin to start the processes that compile kernels: they are ready when they are needed."""
    if device.type == "cuda":
        from torch._inductor.async_compile import AsyncCompile

        AsyncCompile.warm_pool()


def compilations() -> int:
    """How many graphs were compiled in this process."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def breaks() -> int:
    """How often a graph ended early in this process. What Python decides there may be compiled again in any step."""
    return sum(torch._dynamo.utils.counters["graph_break"].values())
