"""A model's weights on disk: safetensors that ``from_pretrained`` reads as they are."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from trainwright.checkpoint.adapters import ADAPTER, adapter_files, load_adapters
from trainwright.checkpoint.manifest import holds, is_listable, only_listed
from trainwright.checkpoint.pieces import cut, piece_of
from trainwright.checkpoint.sharded import StoredTensors, is_stored
from trainwright.config.origin import class_if_imported
from trainwright.config.refused_versions import refuse_unsafe_transformers
from trainwright.core.dtensors import is_dtensor

logger = logging.getLogger("trainwright")
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

Convert = Callable[[dict[str, Tensor]], dict[str, Tensor]]
#: From this size on ``save_pretrained`` writes several files, which is left to it.
_ONE_FILE = 50 * 10**9


def save_weights(model: nn.Module, folder: Path, state_dict: dict[str, Tensor] | None = None) -> None:
    """Write weights (and config, where the model has one) into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    if callable(getattr(model, "save_pretrained", None)):
        _save_by_itself(model, folder, state_dict)
    else:
        tensors = stored_once(model.state_dict() if state_dict is None else state_dict)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS, {"format": "pt"})
    if hasattr(model, "peft_config"):
        _save_stops_beside(model, folder)
    else:
        keep_newer_form(folder)


def _save_stops_beside(model: Any, folder: Path) -> None:
    """Where generation stops: PEFT writes the adapter alone, and the folder of its model may say it otherwise."""
    try:
        save_generation_config(model, folder)
    except (ValueError, TypeError, AttributeError) as error:
        logger.error("%s has the adapter, but not the model's generation_config.json: %s", folder, error)


def _save_by_itself(model: Any, folder: Path, state_dict: dict[str, Tensor] | None) -> None:
    """Call the model's own ``save_pretrained``; a generation config that it refuses costs no weights."""
    try:
        model.save_pretrained(str(folder), state_dict=state_dict)
    except (ValueError, TypeError, AttributeError) as error:
        parts = copied_apart(model) if state_dict is None else None
        if parts is None:
            raise
        state, convert = parts
        state = {name: tensor.contiguous() for name, tensor in (convert(state) if convert else state).items()}
        save_file(state, folder / WEIGHTS, {"format": "pt"})
        save_model_config(model, folder)
        logger.error("%s has the weights, but not all that belongs to the model: %s", folder, error)


def keep_newer_form(folder: Path) -> None:
    """After a model was saved: one that was saved there before in the other form, one file or several, goes.

    Whoever reads the folder would take the one file, even if it is the older.
    """
    one, several = folder / WEIGHTS, folder / INDEX
    if not (one.is_file() and several.is_file()):
        return
    if one.stat().st_mtime_ns < several.stat().st_mtime_ns:
        one.unlink()
        return
    for name in set(json.loads(several.read_text(encoding="utf-8"))["weight_map"].values()):
        (folder / Path(name).name).unlink(missing_ok=True)
    several.unlink()


def stored_once(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of ``state`` without those that are another name for the same memory (tied weights)."""
    kept: dict[str, Tensor] = {}
    seen: set[Any] = set()
    for name, tensor in state.items():
        place = place_in_memory(tensor)
        if place is None or place not in seen:
            kept[name] = tensor
            seen.add(place)
    return kept


def copied_apart(model: nn.Module) -> tuple[dict[str, Tensor], Convert | None] | None:
    """Tensors that make up ``model.safetensors``, and what to do to their copies before they are written.

    None where only the model's own ``save_pretrained`` knows how to write it (adapters, quantized, sharded or foreign
    models): it is then called as it is.
    """
    if not hasattr(model, "save_pretrained"):
        return stored_once(model.state_dict()), None
    return _of_transformers(model)


def _of_transformers(model: Any) -> tuple[dict[str, Tensor], Convert | None] | None:
    theirs = class_if_imported("transformers.modeling_utils", "PreTrainedModel")
    if type(model).save_pretrained is not getattr(theirs, "save_pretrained", None):
        return None
    special = ("hf_quantizer", "hf_device_map", "peft_config")
    if any(getattr(model, name, None) is not None for name in special) or getattr(model, "_tp_size", None) is not None:
        return None
    try:
        from transformers.core_model_loading import revert_weight_conversion
        from transformers.modeling_utils import remove_tied_weights_from_state_dict
    except ImportError:
        # Another release of transformers keeps these elsewhere.
        return None
    state = model.state_dict()
    for name in getattr(model, "_keys_to_ignore_on_save", None) or ():
        state.pop(name, None)
    if any(is_dtensor(tensor) for tensor in state.values()):
        # transformers looks at memory, of which each process has another part: it is shown stand-ins.
        kept = remove_tied_weights_from_state_dict(_stand_ins(state), model)
        return {name: state[name] for name in kept}, lambda copies: revert_weight_conversion(model, copies)
    state = remove_tied_weights_from_state_dict(state, model)
    if sum(tensor.nbytes for tensor in state.values()) >= _ONE_FILE:
        return None
    return state, lambda copies: revert_weight_conversion(model, copies)


def _stand_ins(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A small tensor for each one of ``state``, the same for two names of one."""
    made: dict[Any, Tensor] = {}
    return {name: made.setdefault(place_in_memory(tensor) or name, torch.zeros(1)) for name, tensor in state.items()}


def save_config(model: nn.Module, folder: Path) -> None:
    """What ``save_pretrained`` writes besides weights."""
    save_model_config(model, folder)
    save_generation_config(model, folder)


def save_model_config(model: nn.Module, folder: Path) -> None:
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "save_pretrained"):
        return
    # As save_pretrained does: from_pretrained reads the number format and the class from here.
    config.dtype = str(model.dtype).removeprefix("torch.")
    # FSDP2 makes a class of its own of the model's, with that one behind it.
    is_sharded = isinstance(model, class_if_imported("torch.distributed.fsdp", "FSDPModule"))
    kind = type(model).__bases__[1] if is_sharded else type(model)
    config.architectures = [kind.__name__]
    config.save_pretrained(str(folder))


def save_generation_config(model: Any, folder: Path) -> None:
    if hasattr(getattr(model, "config", None), "save_pretrained") and model.can_generate():
        model.generation_config.save_pretrained(str(folder))


def load_weights(model: nn.Module, folder: str | Path) -> None:
    """Read weights that ``save_weights`` or ``save_pretrained`` wrote; of a model in parts, what is here of it."""
    folder = Path(folder)
    if adapter_files(model, folder):
        load_adapters(model, folder)
    elif any(is_dtensor(parameter) for parameter in model.parameters()):
        _load_parts(model, folder)
    elif holds(folder, WEIGHTS):
        _load_state(model, load_file(folder / WEIGHTS), folder / WEIGHTS)
    elif holds(folder, INDEX):
        state: dict[str, Tensor] = {}
        for shard in _shards(folder):
            state |= load_file(folder / shard)
        _load_state(model, state, folder)
    else:
        raise ValueError(
            f"{folder} holds no {WEIGHTS}, {INDEX} or {ADAPTER}, so there are no weights to load. "
            "Pass the path of a checkpoint-N folder."
        )


def _shards(folder: Path) -> list[str]:
    """The files of a model in several, by its index; only those that are the folder's own."""
    names = sorted(set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
    for name in names:
        if not is_listable(name) or not holds(folder, name):
            raise ValueError(f"{folder / INDEX} names {name!r}, which is not a file of the model.")
    return names


def _load_parts(model: nn.Module, folder: Path) -> None:
    if not is_stored(folder, WEIGHTS):
        raise ValueError(f"{folder} holds no {WEIGHTS} and no {INDEX}, so there are no weights to load.")
    stored = StoredTensors(folder, WEIGHTS)
    own = model.state_dict()
    tied = _tied_names(model)
    missing, unexpected = own.keys() - stored.keys() - tied, stored.keys() - own.keys()
    other: Mapping[str, Tensor] = stored
    if unexpected and _writes_other_names(model):
        other, missing, unexpected = _renamed_by_transformers(model, folder), set(), set()
    sizes = [n for n, t in own.items() if n in stored and stored.shape(n) != tuple(t.shape)]
    if missing or unexpected or sizes:
        raise ValueError(
            f"The weights in {folder} do not fit the model: missing {sorted(missing)[:5]}, unexpected "
            f"{sorted(unexpected)[:5]}, of another size {sizes[:5]}. Build the model with the same configuration as "
            "the run that was saved."
        )
    with torch.no_grad():
        for name, tensor in own.items():
            if name not in other:
                continue
            piece = piece_of(tensor)
            here = piece.tensor
            part = stored.part(name, piece.offset, tuple(here.shape)) if other is stored else cut(other[name], piece)
            here.copy_(part)


def _load_state(model: nn.Module, state: dict[str, Tensor], where: Path) -> None:
    """Load leniently on tied weights, which are stored once, and strictly on everything else."""
    own = model.state_dict()
    if state.keys() - own.keys() and _writes_other_names(model):
        state = _renamed_by_transformers(model, where)
    missing, unexpected = own.keys() - state.keys() - _tied_names(model), state.keys() - own.keys()
    if missing or unexpected:
        raise ValueError(
            f"The weights in {where} do not fit the model: missing {sorted(missing)[:5]}, unexpected "
            f"{sorted(unexpected)[:5]}. Build the model with the same configuration as the run that was saved."
        )
    sizes = [name for name, tensor in state.items() if tensor.shape != own[name].shape]
    if sizes:
        first, others = sizes[0], f", and {len(sizes) - 1} more" if len(sizes) > 1 else ""
        raise ValueError(
            f"The weights in {where} do not fit the model: {first} is {tuple(state[first].shape)} there and "
            f"{tuple(own[first].shape)} here{others}. Build the model with the same configuration as the run that was "
            "saved."
        )
    model.load_state_dict(state, strict=False)
    tie = getattr(model, "tie_weights", None)
    if callable(tie):
        tie()


def _writes_other_names(model: nn.Module) -> bool:
    return getattr(type(model), "save_pretrained", None) is not None and hasattr(type(model), "from_pretrained")


def _renamed_by_transformers(model: Any, where: Path) -> dict[str, Tensor]:
    """Weights by the names they have in memory: mixtures of experts, for one, are stored expert by expert."""
    folder = where if where.is_dir() else where.parent
    refuse_unsafe_transformers()
    try:
        with only_listed(folder) as source:
            loaded, info = type(model).from_pretrained(str(source), dtype=model.dtype, output_loading_info=True)
    except (OSError, RuntimeError) as error:
        raise ValueError(
            f"The weights in {folder} do not fit the model ({str(error).splitlines()[0]}). Build the model with the "
            "same configuration as the run that was saved."
        ) from error
    lost = [name for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for name in info.get(kind) or ()]
    if lost:
        raise ValueError(
            f"The weights in {folder} do not fit the model: {sorted(map(str, lost))[:5]}. Build the model with the "
            "same configuration as the run that was saved."
        )
    return dict(loaded.state_dict())


def _tied_names(model: nn.Module) -> set[str]:
    """Names that share memory with another name, and those transformers declares tied."""
    owners: dict[Any, str] = {}
    tied: set[str] = set()
    for name, tensor in model.state_dict().items():
        place = place_in_memory(tensor)
        if place is not None and owners.setdefault(place, name) != name:
            tied |= {name, owners[place]}
    declared: Any = getattr(model, "_tied_weights_keys", None) or ()
    return tied | set(declared)


def place_in_memory(tensor: Tensor) -> Any:
    """Where a tensor lives, equal for two names of the same memory; None for what has no memory."""
    if tensor.numel() == 0 or tensor.device.type == "meta":
        return None
    if is_dtensor(tensor):
        # This process may have nothing of it, but even that has a storage of its own.
        return tensor.to_local().untyped_storage()._cdata, tuple(tensor.shape)  # type: ignore[attr-defined]
    return tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()
