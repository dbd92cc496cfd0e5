"""Texts of different lengths without their padding: between the first and the last block tokens stand in one row.

A batch of texts is as long as its longest; often most of it is padding, for which every layer computes what nobody
reads. Here the network's own code makes embeddings, positions and masks of the padded batch as ever. The first block
takes the tokens that are no padding out of it and puts them behind each other; attention looks only from a sample to
itself; and behind the last block everything stands where it stood, with zeros for padding. So a head that reads no
state of padding finds what it knows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.core.main_memory import machine_memory
from trainwright.engines.torch.acceleration.blocks import is_compiled_by_others, repeated_blocks
from trainwright.engines.torch.acceleration.call import Call
from trainwright.engines.torch.acceleration.head import has_hooks
from trainwright.engines.torch.acceleration.read_tokens import is_known_head, why_not_call
from trainwright.engines.torch.acceleration.technique import Situation, Undo
from trainwright.engines.torch.acceleration.unpadded import Unpadded, row_of
from trainwright.engines.torch.acceleration.unpadded_attention import Bounds, attend, find_kernel

#: The name under which transformers finds this attention.
NAME = "trainwright"

#: The least share of padding in the first batch that is worth it.
LEAST_PADDING = 0.1

#: Parameters from which on layers cost more than what is done here, on a CPU.
LEAST_PARAMETERS_ON_CPU = 5_000_000

#: Bytes a parameter that the comparison with the plain way takes on a CPU: it and its gradients in double precision.
_COMPARED = 24

#: Steps from which on the comparison with the plain way is repaid there.
LEAST_STEPS_ON_CPU = 50


@dataclass
class _Installed:
    """A network whose batches do without padding."""

    network: nn.Module
    #: The configurations that its modules hold.
    configs: list[Any]
    #: Everything in its blocks.
    parts: list[nn.Module]
    is_active: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._may_checkpoint: list[Any] = [part for part in self.parts if hasattr(part, "gradient_checkpointing")]
        #: Layers that are computed again in backward look for their attention when the network is not called.
        self.is_checkpointed = self._checkpoints()
        if self.is_checkpointed:
            self._name(_PLAIN, NAME)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within it transformers finds the attention without padding. Outside nobody sees anything of it, no copy and
        no evaluation; only with checkpointed layers the name stays."""
        if self.is_active:
            yield
            return
        self.is_active = True
        for config in self.configs:
            _active[id(config)] = self
        if not self.is_checkpointed:
            self._name(_PLAIN, NAME)
        try:
            yield
        finally:
            self.is_active = False
            for config in self.configs:
                _active.pop(id(config), None)
            if not self.is_checkpointed:
                self._name(NAME, _PLAIN)

    def close(self) -> None:
        self._name(NAME, _PLAIN)

    def serves(self, kwargs: dict[str, Any]) -> bool:
        """Whether this call gives the same without padding."""
        name = NAME if self.is_checkpointed else _PLAIN
        return (
            self.network.training
            and torch.is_grad_enabled()
            and self._checkpoints() == self.is_checkpointed
            and all(config._attn_implementation == name for config in self.configs)
            and why_not_call(kwargs, self.configs[0]) is None
            and not any(has_hooks(part) for part in self.parts)
        )

    def _checkpoints(self) -> bool:
        return any(part.gradient_checkpointing for part in self._may_checkpoint)

    def _name(self, before: str, now: str) -> None:
        for config in self.configs:
            # Whoever chose another one meanwhile wants that.
            if config._attn_implementation == before:
                config._attn_implementation = now


#: By the identity of a configuration, while its network computes a batch.
_active: dict[int, _Installed] = {}

_PLAIN = "sdpa"


class NoPadding:
    name = "padding"
    says = "padding is left out of the blocks"
    changes_bits = True
    is_visible = True
    is_proven = True
    is_compiled = False
    pays_on_cpu = True

    def why_not(self, situation: Situation) -> str | None:
        if not situation.lengths_vary:
            return "samples are stacked as they are"
        if situation.layout not in ("sp", "ddp"):
            return f"it does not go with {situation.layout} yet"
        if not situation.loss_is_the_networks:
            return "the loss is not computed by the network from its labels"
        if situation.onlookers:
            return f"{situation.onlookers[0]} could see it"
        if "torch_compile" in situation.settings:
            return "torch_compile=True compiles the whole network"
        why = _why_not_model(situation.network)
        if why is None and situation.device.type == "cpu" and not situation.is_asked_for:
            why = _why_not_on_cpu(situation)
        return why

    def why_not_for(self, call: Call) -> str | None:
        """Why it does not go with the first batch: what cannot be seen there cannot be proven."""
        mask = call.kwargs.get("attention_mask")
        if not isinstance(mask, Tensor) or mask.ndim != 2:
            return "the network is not given a mask that says what is padding"
        why = why_not_call(call.kwargs, None)
        if why is not None:
            return why
        padding = 1 - float(mask.bool().float().mean())
        if padding < LEAST_PADDING:
            return f"{padding:.0%} of the first batch is padding"
        return None

    def install(self, situation: Situation) -> Undo:
        _register()
        find_kernel(situation.device)
        network = situation.network
        stack = _stack(network)
        assert stack is not None
        configs = {id(config): config for module in network.modules() if (config := _plain_config(module)) is not None}
        parts = [part for block in stack for part in block.modules()]
        installed = _Installed(network, list(configs.values()), parts)
        undo_blocks = [_wrap(block, installed, block is stack[0], block is stack[-1]) for block in stack]
        undo_network = _wrap_network(installed)

        def undo() -> None:
            undo_network()
            for one in undo_blocks:
                one()
            installed.close()

        return undo


def _plain_config(module: Any) -> Any:
    config = getattr(module, "config", None)
    return config if getattr(config, "_attn_implementation", None) == _PLAIN else None


def _why_not_model(network: Any) -> str | None:
    transformers = sys.modules.get("transformers")
    config: Any = getattr(network, "config", None)
    base = network.get_base_model() if hasattr(network, "peft_config") else network
    if transformers is None or not isinstance(base, transformers.PreTrainedModel):
        return "the network is not a model of transformers"
    if getattr(config, "_attn_implementation", None) != _PLAIN:
        return "its attention is not torch's (attn_implementation)"
    if getattr(config, "is_encoder_decoder", False) or getattr(config, "sub_configs", None):
        return "it has an encoder and a decoder, or several parts"
    if not is_known_head(base):
        return f"it is not known at which tokens the head of {type(base).__name__} looks"
    if any(value for name, value in vars(config).items() if "layerdrop" in name.replace("_", "")):
        return "it leaves out blocks at random"
    if not _looks_everywhere(config):
        return "some of its blocks look only at tokens nearby"
    stack = _stack(network)
    if stack is None:
        return "its blocks are not in one list"
    if is_compiled_by_others(network) or any(is_compiled_by_others(block) for block in stack):
        return "it is compiled already"
    if any(has_hooks(module) for block in stack for module in block.modules()):
        return "somebody's hook listens to its blocks"
    return None


def _why_not_on_cpu(situation: Situation) -> str | None:
    if situation.parameters < LEAST_PARAMETERS_ON_CPU:
        return f"a network of {situation.parameters:,} parameters gains nothing on a CPU"
    if situation.parameters * _COMPARED > machine_memory() / 2:
        return "comparing it with the plain way might not fit into memory"
    if situation.steps < LEAST_STEPS_ON_CPU:
        return "the run is too short to repay the comparison"
    return None


def _looks_everywhere(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None)
    return set(kinds) == {"full_attention"} if kinds else getattr(config, "sliding_window", None) is None


def _stack(network: nn.Module) -> list[nn.Module] | None:
    """The one list of layers that holds the network's repeated blocks."""
    repeated = {id(block) for block in repeated_blocks(network)}
    lists = [
        list(module)
        for module in network.modules()
        if isinstance(module, nn.ModuleList) and any(id(entry) in repeated for entry in module)
    ]
    return lists[0] if len(lists) == 1 else None


def _wrap(block: nn.Module, installed: _Installed, is_first: bool, is_last: bool) -> Undo:
    """Have it compute one row. Whatever computes the block now, compiled or not, keeps doing so."""
    before = block._compiled_call_impl
    compute: Callable[..., Any] = before if before is not None else block._call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        given = next((one for one in (*args, *kwargs.values()) if isinstance(one, Unpadded)), None)
        if given is None:
            return compute(*args, **kwargs)
        args, kwargs = row_of(given, args, kwargs, is_first=is_first)
        with installed.active():
            found = compute(*args, **kwargs)
        if not is_last:
            return found
        if isinstance(found, tuple):
            return (given.leave(found[0]), *found[1:])
        return given.leave(found)

    block._compiled_call_impl = call

    def undo() -> None:
        block._compiled_call_impl = before

    return undo


def _wrap_network(installed: _Installed) -> Undo:
    """Look at each batch before the network does."""
    network = installed.network
    before = network._compiled_call_impl

    def around(compute: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not installed.serves(kwargs):
            return compute(*args, **kwargs)
        with installed.active():
            return compute(*args, **kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        return around(before if before is not None else network._call_impl, args, kwargs)

    def begin(kwargs: dict[str, Any]) -> ExitStack:
        """For a call that has begun already; closed when it ends."""
        within = ExitStack()
        if installed.serves(kwargs):
            within.enter_context(installed.active())
        return within

    call.begin = begin  # type: ignore[attr-defined]
    call.without_hooks = lambda *args, **kwargs: around(network.forward, args, kwargs)  # type: ignore[attr-defined]
    network._compiled_call_impl = call

    def undo() -> None:
        network._compiled_call_impl = before

    return undo


def _register() -> None:
    """Make the attention known to transformers, by a name of its own."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)


def _mask(*args: Any, **kwargs: Any) -> Any:
    """What models hand to their blocks as a mask."""
    from transformers import masking_utils

    installed = _active.get(id(kwargs.get("config")))
    kept, function = kwargs.get("attention_mask"), kwargs.get("mask_function")
    causal = function is masking_utils.causal_mask_function
    is_plain = causal or function is getattr(masking_utils, "bidirectional_mask_function", None)
    fits = (
        isinstance(kept, Tensor)
        and kept.ndim == 2
        and kept.shape[1] == kwargs.get("q_length") == kwargs.get("kv_length")
    )
    if installed is not None and is_plain and fits:
        assert isinstance(kept, Tensor)
        found = Unpadded.of(kept.bool(), is_causal=causal)
        if len(found.bounds.places):
            return found
    return masking_utils.sdpa_mask(*args, **kwargs)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Torch's attention, in a row of its own for each sample where the blocks compute such rows."""
    if not isinstance(attention_mask, Bounds):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    unknown = [
        name
        for name, given in kwargs.items()
        if (isinstance(given, Tensor) and given.ndim and name != "position_ids")
        or (name in ("softcap", "sliding_window") and given is not None)
    ]
    if unknown:
        raise ValueError(f"its attention depends on {unknown[0]!r}")
    return attend(query, key, value, attention_mask, dropout=dropout, scaling=scaling), None
