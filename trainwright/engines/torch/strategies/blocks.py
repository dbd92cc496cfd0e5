"""The parts of a model that are sharded, and recomputed, as one."""

from __future__ import annotations

from collections import Counter

from torch import nn


def blocks_of(model: nn.Module, names: tuple[str, ...] | None, min_parameters: int | None) -> list[nn.Module]:
    """Modules to shard each on its own, innermost first; the rest of the model is one more.

    By class ``names`` where given; else modules of at least ``min_parameters``; else the classes that a transformers
    model says may not be split; else the entries of the model's lists of layers.

    >>> len(blocks_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), ("Linear",), None))
    2
    """
    if names == ():
        return []
    if min_parameters is not None and names is None:
        return _closed(model, _by_size(model, min_parameters))
    wanted = names or tuple(getattr(model, "_no_split_modules", None) or ())
    present = [module for module in model.modules() if type(module).__name__ in wanted and module is not model]
    missing = set(names or ()) - {type(module).__name__ for module in present}
    if missing:
        common = ", ".join(name for name, _ in Counter(type(m).__name__ for m in model.modules()).most_common(12))
        raise ValueError(
            f"transformer_layer_cls_to_wrap names {', '.join(sorted(missing))}, which the model does not have; it has "
            f"{common}."
        )
    return _closed(model, _inner_first(present or _entries_of_lists(model)))


def _entries_of_lists(model: nn.Module) -> list[nn.Module]:
    lists = [module for module in model.modules() if isinstance(module, (nn.ModuleList, nn.Sequential))]
    entries = [entry for one in lists for entry in one if any(True for _ in entry.parameters())]
    # Lists within lists: the outer entries are the blocks.
    inner = {id(part) for entry in entries for part in entry.modules() if part is not entry}
    return [entry for entry in dict.fromkeys(entries) if id(entry) not in inner and entry is not model]


def _by_size(model: nn.Module, least: int) -> list[nn.Module]:
    def size(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    large = [module for module in model.modules() if module is not model and size(module) >= least]
    return _inner_first([m for m in large if not isinstance(m, (nn.ModuleList, nn.ModuleDict))])


def _closed(model: nn.Module, blocks: list[nn.Module]) -> list[nn.Module]:
    """Those that share no parameter with the rest of the model: what is shared must be together."""
    uses = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    closed = []
    for block in blocks:
        own = Counter(id(parameter) for _, parameter in block.named_parameters(remove_duplicate=False))
        if own and all(uses[parameter] == count for parameter, count in own.items()):
            closed.append(block)
    return closed


def _inner_first(modules: list[nn.Module]) -> list[nn.Module]:
    return list(reversed(modules))


def checkpoint_activations(model: nn.Module, blocks: list[nn.Module]) -> None:
    """Blocks keep their inputs only and are run again in the backward pass."""
    from torch.distributed._composable import checkpoint

    if not blocks:
        raise ValueError(
            "activation_checkpointing needs blocks to recompute: name their class in transformer_layer_cls_to_wrap."
        )
    for block in blocks:
        checkpoint(block)
