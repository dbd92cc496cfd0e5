"""How a model is spread over processes: what ``backend``, ``fsdp``, ``deepspeed`` and the launcher say together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainwright.config.backends import split_name
from trainwright.config.deepspeed import check_deepspeed
from trainwright.config.fields import ours
from trainwright.config.registry import suggestion
from trainwright.config.warnings import warn

if TYPE_CHECKING:
    from trainwright.config.arguments import TrainingArguments

#: Words of ``fsdp="..."`` in transformers 4, with what they mean as options.
_WORDS: dict[str, dict[str, Any]] = {
    "full_shard": {"reshard_after_forward": True},
    "shard_grad_op": {"reshard_after_forward": False},
    "hybrid_shard": {"reshard_after_forward": True, "hybrid": True},
    "hybrid_shard_zero2": {"reshard_after_forward": False, "hybrid": True},
    "offload": {"cpu_offload": True},
    "auto_wrap": {},
    "true": {},
}
_WRAPS = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
#: Options of FSDP that decide nothing here, with the reason; other values than these are said to have no effect.
_WITHOUT_EFFECT = {
    "version": "FSDP2 is what there is",
    "state_dict_type": "checkpoints are written by all processes and read by any number of them",
    "use_orig_params": "FSDP2 keeps the parameters' own names",
    "cpu_ram_efficient_loading": "a model on the meta device always gets the first process's weights",
    "sync_module_states": "weights always start as those of the first process",
    "forward_prefetch": "FSDP2 overlaps by itself",
    "backward_prefetch": "FSDP2 overlaps by itself",
    "limit_all_gathers": "FSDP2 limits them by itself",
    "xla_fsdp_v2": "it belongs to XLA",
    "xla_fsdp_grad_ckpt": "it belongs to XLA",
    "xla_fsdp_settings": "it belongs to XLA",
}
_ACTING = (
    "reshard_after_forward",
    "cpu_offload",
    "offload_params",
    "activation_checkpointing",
    "auto_wrap_policy",
    "transformer_layer_cls_to_wrap",
    "min_num_params",
    "hybrid",
    "xla",
)


_PARALLEL_SIZES = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")


@dataclass(frozen=True)
class Sharding:
    """Options of FSDP2 by our own words."""

    #: Let go of whole parameters between forward and backward: less memory, one more gather.
    reshard_after_forward: bool = True
    offload: bool = False
    activation_checkpointing: bool = False
    #: Names of the classes that are sharded as one; None: what the model says, or the entries of its lists of layers.
    blocks: tuple[str, ...] | None = None
    #: Instead of by class, every module of at least this many parameters.
    min_parameters: int | None = None
    #: Shard within each machine, and keep a copy on every machine.
    hybrid: bool = False


def derive_parallel(args: TrainingArguments) -> None:
    """What an accelerate ``ParallelismConfig`` says, in our own arguments; other ways of splitting are refused."""
    config = args.parallelism_config
    if config is None:
        return
    sizes = {name: int(getattr(config, name, 1) or 1) for name in _PARALLEL_SIZES}
    refused = [name for name in ("cp_size", "sp_size") if sizes[name] > 1]
    if refused:
        raise ValueError(
            f"parallelism_config: {refused[0]}={sizes[refused[0]]} splits sequences, which is not supported: use "
            "dp_shard_size, dp_replicate_size and tp_size."
        )
    if sizes["tp_size"] > 1:
        args.tensor_parallel_size = sizes["tp_size"]
    if sizes["dp_shard_size"] > 1 and not is_on(args.fsdp):
        args.fsdp = "hybrid_shard" if sizes["dp_replicate_size"] > 1 else "full_shard"


def check_parallel(args: TrainingArguments) -> None:
    """Refuse what cannot go together, before anything runs."""
    way, tensors = way_of(args), ours(args).tensor_parallel_size
    if tensors < 1:
        raise ValueError(f"tensor_parallel_size={tensors} must be at least 1.")
    if tensors > 1 and way not in (None, "fsdp"):
        raise ValueError(
            f"tensor_parallel_size={tensors} goes with FSDP, which spreads the rest of the model: use backend='fsdp'."
        )
    if args.world_size % tensors:
        raise ValueError(
            f"tensor_parallel_size={tensors} does not divide the {args.world_size} processes that were started."
        )
    if isinstance(args.deepspeed, str):
        raise ValueError(f"deepspeed={args.deepspeed!r} is neither a dict, nor JSON, nor a readable file.")
    if way == "deepspeed":
        check_deepspeed(args)
    if way == "fsdp":
        sharding_of(args)
    elif args.fsdp_config is not None and args.fsdp_config != {"min_num_params": 0}:
        warn("fsdp_config has no effect: it is read only where fsdp is on.")


def way_of(args: TrainingArguments) -> str | None:
    """The name of the strategy where arguments say one, None where the launcher decides."""
    named = ours(args).backend
    way = None if named is None else split_name(named)[0]
    by_option = "fsdp" if is_on(args.fsdp) else "deepspeed" if args.deepspeed is not None else None
    if is_on(args.fsdp) and args.deepspeed is not None:
        raise ValueError("fsdp and deepspeed both spread the model: keep one of them.")
    if way is None:
        return by_option or ("fsdp" if ours(args).tensor_parallel_size > 1 else None)
    if by_option is not None and way != by_option:
        raise ValueError(f"backend={named!r} and {by_option}= contradict each other: leave one of them out.")
    return way


def is_on(fsdp: object) -> bool:
    """Whether ``fsdp=`` asks for it: True, words of transformers 4, or the text that a command line gives."""
    if isinstance(fsdp, (list, tuple)):
        return bool(fsdp)
    return bool(fsdp) and str(fsdp).strip().lower() not in ("false", "no", "none", "no_shard", "")


def sharding_of(args: TrainingArguments) -> Sharding:
    """The options in ``fsdp`` and ``fsdp_config``; an unknown one is refused with a suggestion."""
    options: dict[str, Any] = {}
    words = args.fsdp if isinstance(args.fsdp, (list, tuple)) else str(args.fsdp or "").replace(",", " ").split()
    for word in words:
        name = str(getattr(word, "value", word)).lower()
        if name not in _WORDS:
            raise ValueError(f"fsdp={args.fsdp!r}: {name!r} is not known{suggestion(name, tuple(_WORDS))}.")
        options |= _WORDS[name]
    given = args.fsdp_config or {}
    if not isinstance(given, Mapping):
        raise ValueError(f"fsdp_config={given!r} must be a dict, JSON text of one, or the path of a JSON file.")
    for name, value in given.items():
        plain = name.removeprefix("fsdp_")
        if plain not in _ACTING and plain not in _WITHOUT_EFFECT:
            raise ValueError(f"fsdp_config has {name!r}, which is not known{suggestion(plain, _ACTING)}.")
        options[plain] = value
    return _sharding(options)


def without_effect(fsdp_config: Any) -> dict[str, str]:
    """Options in ``fsdp_config`` that change nothing, each with the reason."""
    names = [name.removeprefix("fsdp_") for name in fsdp_config or ()]
    return {name: _WITHOUT_EFFECT[name] for name in names if name in _WITHOUT_EFFECT}


def _sharding(options: dict[str, Any]) -> Sharding:
    if _as_bool(options.get("xla", False)):
        raise ValueError("fsdp_config: xla=True needs TPUs, which are not supported; remove it.")
    wrap = str(options.get("auto_wrap_policy", _WRAPS[0])).upper()
    if wrap not in _WRAPS:
        raise ValueError(f"fsdp_config: auto_wrap_policy={wrap!r} is not one of {', '.join(_WRAPS)}.")
    blocks = options.get("transformer_layer_cls_to_wrap")
    if isinstance(blocks, str):
        blocks = [name.strip() for name in blocks.split(",")]
    least = int(options.get("min_num_params", 0) or 0)
    reshard = options.get("reshard_after_forward", True)
    # FSDP1 has words here.
    named = {"full_shard": True, "shard_grad_op": False, "hybrid_shard": True, "no_shard": False}
    reshard = named[str(reshard).lower()] if str(reshard).lower() in named else _as_bool(reshard)
    return Sharding(
        reshard_after_forward=reshard,
        offload=_as_bool(options.get("cpu_offload", options.get("offload_params", False))),
        activation_checkpointing=_as_bool(options.get("activation_checkpointing", False)),
        blocks=() if wrap == "NO_WRAP" else tuple(blocks) if blocks else None,
        min_parameters=least if least and wrap != "TRANSFORMER_BASED_WRAP" else None,
        hybrid=_as_bool(options.get("hybrid", False)),
    )


def _as_bool(value: object) -> bool:
    return str(value).strip().lower() in ("true", "1", "yes", "on")
