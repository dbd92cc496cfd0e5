"""Texts of different lengths without their padding: between the first and the last block tokens stand in one row.

A batch of texts is as long as its longest; often most of it is padding, for which every layer computes what nobody
reads. Here the network's own code makes embeddings, positions and masks of the padded batch as ever. The first block
takes the tokens that are no padding out of it and puts them behind each other; attention looks only from a sample to
itself; and behind the last block everything stands where it stood, with zeros for padding. So whatever comes after
the blocks, a head of any kind, finds what it knows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.core.main_memory import machine_memory
from trainwright.engines.torch.acceleration.blocks import is_compiled_by_others, repeated_blocks
from trainwright.engines.torch.acceleration.call import Call
from trainwright.engines.torch.acceleration.head import has_hooks
from trainwright.engines.torch.acceleration.technique import Situation, Undo
from trainwright.engines.torch.acceleration.unpadded_attention import Bounds, attend, find_kernel, mask_of

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

#: On a GPU rows are filled up to a multiple of this: kernels are made for few lengths.
FILLED_UP_TO = 256

#: What blocks are given beside hidden states and masks: numbers for each position.
_OF_POSITIONS = ("position_embeddings", "position_ids")

_IGNORED = -100


class Unpadded:
    """What stands in place of a mask while one batch goes through the network."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        #: What was gathered for the first block serves the others.
        self._gathered: dict[int, tuple[Tensor, Tensor]] = {}

    @classmethod
    def of(cls, kept: Tensor, *, is_causal: bool) -> Unpadded:
        """A batch of which the places that are ``kept`` are no padding."""
        places = kept.flatten().nonzero().squeeze(1)
        ends = nn.functional.pad(kept.sum(1).cumsum(0), (1, 0))
        spare = -len(places) % FILLED_UP_TO if kept.is_cuda else 0
        if spare:
            # A sample of its own, whose place is beyond the batch.
            places = nn.functional.pad(places, (0, spare), value=kept.numel())
            ends = torch.cat([ends, ends[-1:] + spare])
        return cls(Bounds(ends.to(torch.int32), places, kept, is_causal))

    def as_mask(self) -> Tensor:
        """What says the same to attention over the padded batch."""
        return mask_of(self.bounds)

    def enter(self, states: Tensor) -> Tensor:
        """Samples x positions x ... to one row of tokens: 1 x tokens x ..."""
        flat = states.expand(*self.bounds.kept.shape, *states.shape[2:]).flatten(0, 1)
        return flat.index_select(0, self.bounds.places.clamp(max=len(flat) - 1))[None]

    def leave(self, states: Tensor) -> Tensor:
        """The other way round, with zeros for padding."""
        samples, length = self.bounds.kept.shape
        empty = states.new_zeros((samples * length + 1, *states.shape[2:]))
        return empty.index_copy(0, self.bounds.places, states[0])[:-1].unflatten(0, (samples, length))

    def gathered(self, value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(self.gathered(one) for one in value)
        if not isinstance(value, Tensor) or value.ndim < 2:
            return value
        if id(value) not in self._gathered:
            self._gathered[id(value)] = (value, self.enter(value))
        return self._gathered[id(value)][1]


@dataclass
class _Installed:
    """A network whose batches do without padding."""

    network: nn.Module
    #: This call's numbers would not be the same.
    is_refused: bool = False
    before: dict[int, tuple[Any, str]] = field(default_factory=dict)

    def is_on(self) -> bool:
        return self.network.training and torch.is_grad_enabled() and not self.is_refused


#: By the identity of a configuration that the network's modules hold.
_installed: dict[int, _Installed] = {}


class NoPadding:
    name = "padding"
    says = "padding is left out of the blocks"
    changes_bits = True
    is_visible = True
    is_proven = True
    is_compiled = False
    pays_on_cpu = True

    def why_not(self, situation: Situation) -> str | None:
        network = situation.network
        if not situation.lengths_vary:
            return "samples are stacked as they are"
        if situation.layout not in ("sp", "ddp"):
            return f"it does not go with {situation.layout} yet"
        if not situation.loss_is_the_networks:
            return "the loss is not computed by the network from its labels"
        if "torch_compile" in situation.settings:
            return "torch_compile=True compiles the whole network"
        why = _why_not_model(network)
        if why is not None:
            return why
        if situation.device.type == "cpu" and not situation.is_asked_for:
            if situation.parameters < LEAST_PARAMETERS_ON_CPU:
                return f"a network of {situation.parameters:,} parameters gains nothing on a CPU"
            if situation.parameters * _COMPARED > machine_memory() / 2:
                return "comparing it with the plain way might not fit into memory"
            if situation.steps < LEAST_STEPS_ON_CPU:
                return "the run is too short to repay the comparison"
        return None

    def why_not_for(self, call: Call) -> str | None:
        """Why it does not go with the first batch: what cannot be seen there cannot be proven."""
        mask = call.kwargs.get("attention_mask")
        if not isinstance(mask, Tensor) or mask.ndim != 2:
            return "the network is not given a mask that says what is padding"
        if trains_on_padding(call.kwargs.get("labels"), mask):
            return "the first batch trains on tokens of padding, or on texts that begin with it"
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
        installed = _Installed(network)
        for module in network.modules():
            config: Any = getattr(module, "config", None)
            if getattr(config, "_attn_implementation", None) == "sdpa" and id(config) not in installed.before:
                installed.before[id(config)] = (config, config._attn_implementation)
        for key, (config, _) in installed.before.items():
            config._attn_implementation = NAME
            _installed[key] = installed
        undo_blocks = [_wrap(block, is_first=block is stack[0], is_last=block is stack[-1]) for block in stack]
        undo_network = _look_at_labels(installed)

        def undo() -> None:
            undo_network()
            for one in undo_blocks:
                one()
            for key, (config, name) in installed.before.items():
                config._attn_implementation = name
                del _installed[key]

        return undo


def _why_not_model(network: Any) -> str | None:
    transformers = sys.modules.get("transformers")
    config: Any = getattr(network, "config", None)
    base = network.get_base_model() if hasattr(network, "peft_config") else network
    if transformers is None or not isinstance(base, transformers.PreTrainedModel):
        return "the network is not a model of transformers"
    if getattr(config, "_attn_implementation", None) != "sdpa":
        return "its attention is not torch's (attn_implementation)"
    if getattr(config, "is_encoder_decoder", False) or getattr(config, "sub_configs", None):
        return "it has an encoder and a decoder, or several parts"
    if getattr(config, "output_hidden_states", False) or getattr(config, "output_attentions", False):
        return "what its blocks put out is asked for"
    if getattr(config, "layerdrop", 0.0):
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


def _wrap(block: nn.Module, *, is_first: bool, is_last: bool) -> Undo:
    """Have it compute one row. Whatever computes the block now, compiled or not, goes on doing so."""
    before = block._compiled_call_impl
    compute: Callable[..., Any] = before if before is not None else block._call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        given = next((one for one in (*args, *kwargs.values()) if isinstance(one, Unpadded)), None)
        if given is None:
            return compute(*args, **kwargs)
        args, kwargs = _row_of(given, args, kwargs, is_first=is_first)
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


def _row_of(
    given: Unpadded, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_first: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A block's arguments for one row of tokens."""
    named = {**dict(enumerate(args)), **kwargs}
    states = 0 if args else "hidden_states"
    for name, value in named.items():
        if value is given:
            named[name] = given.bounds
        elif name == states:
            named[name] = given.enter(value) if is_first else value
        elif name in _OF_POSITIONS:
            named[name] = given.gathered(value)
        elif isinstance(value, Tensor) and value.ndim > 1:
            raise ValueError(f"its blocks are given {name!r}, and it is not known which tokens that is about")
    return tuple(named[number] for number in range(len(args))), {name: named[name] for name in kwargs}


def _look_at_labels(installed: _Installed) -> Undo:
    """Leave a batch as it is in which the state of a padding token is trained on: it would be another."""
    network = installed.network
    before = network._compiled_call_impl
    compute: Callable[..., Any] = before if before is not None else network._call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        installed.is_refused = bool(kwargs.get("output_hidden_states") or kwargs.get("output_attentions")) or (
            trains_on_padding(kwargs.get("labels"), kwargs.get("attention_mask"))
        )
        try:
            return compute(*args, **kwargs)
        finally:
            installed.is_refused = False

    network._compiled_call_impl = call

    def undo() -> None:
        network._compiled_call_impl = before

    return undo


def trains_on_padding(labels: object, mask: object) -> bool:
    """Whether a label stands at a padding token, or behind one whose state would have to predict it.

    >>> mask = torch.tensor([[0, 1, 1], [1, 1, 0]])
    >>> trains_on_padding(torch.tensor([[-100, -100, 5], [6, 7, -100]]), mask)
    False
    >>> trains_on_padding(torch.tensor([[-100, 4, 5], [6, 7, -100]]), mask)
    True
    """
    if not isinstance(labels, Tensor) or not isinstance(mask, Tensor) or mask.ndim != 2:
        return False
    kept = mask.bool()
    if labels.shape != mask.shape:
        # Of a label for each text: its first token is what many heads look at, whether it is padding or not.
        return not bool(kept[:, 0].all())
    before = nn.functional.pad(kept[:, :-1], (1, 0), value=True)
    return bool(((labels != _IGNORED) & ~(kept & before)).any())


def _register() -> None:
    """Make the attention known to transformers, by a name of its own."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)


def _mask(*args: Any, **kwargs: Any) -> Any:
    """What models hand to their blocks as a mask."""
    from transformers import masking_utils

    installed = _installed.get(id(kwargs.get("config")))
    kept, function = kwargs.get("attention_mask"), kwargs.get("mask_function")
    causal = function is masking_utils.causal_mask_function
    is_plain = causal or function is getattr(masking_utils, "bidirectional_mask_function", None)
    fits = (
        isinstance(kept, Tensor)
        and kept.ndim == 2
        and kept.shape[1] == kwargs.get("q_length") == kwargs.get("kv_length")
    )
    if installed is not None and installed.is_on() and is_plain and fits:
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

        if isinstance(attention_mask, Unpadded):
            # Another network with the same configuration, whose blocks know nothing of this.
            attention_mask = attention_mask.as_mask()
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
