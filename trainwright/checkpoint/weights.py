"""A model's weights on disk: safetensors that ``from_pretrained`` reads as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor, nn

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_model.safetensors"


def save_weights(model: nn.Module, folder: Path, state_dict: dict[str, Tensor] | None = None) -> None:
    """Write weights (and config, where the model has one) into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    save_pretrained = getattr(model, "save_pretrained", None)
    if callable(save_pretrained):
        save_pretrained(str(folder), state_dict=state_dict)
    elif state_dict is not None:
        save_file({name: tensor.contiguous().clone() for name, tensor in state_dict.items()}, folder / WEIGHTS)
    else:
        save_model(model, str(folder / WEIGHTS))


def load_weights(model: nn.Module, folder: str | Path) -> None:
    """Read weights that ``save_weights`` or ``save_pretrained`` wrote."""
    folder = Path(folder)
    if (folder / ADAPTER).is_file() and hasattr(model, "peft_config"):
        _load_adapter(model, folder)
    elif (folder / WEIGHTS).is_file():
        _load_tensors(model, folder / WEIGHTS)
    elif (folder / INDEX).is_file():
        shards = sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))
        state: dict[str, Tensor] = {}
        for shard in shards:
            state |= load_file(folder / shard)
        _load_state(model, state, folder)
    else:
        raise ValueError(
            f"{folder} holds no {WEIGHTS}, {INDEX} or {ADAPTER}, so there are no weights to load. "
            "Pass the path of a checkpoint-N folder."
        )


def _load_tensors(model: nn.Module, path: Path) -> None:
    if hasattr(model, "save_pretrained"):
        _load_state(model, load_file(path), path)
    else:
        load_model(model, str(path))


def _load_state(model: nn.Module, state: dict[str, Tensor], where: Path) -> None:
    """Load leniently on tied weights, which are stored once, and strictly on everything else."""
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = _tied_names(model)
    lost = [name for name in missing if name not in tied]
    if lost or unexpected:
        raise ValueError(
            f"The weights in {where} do not fit the model: missing {lost[:5]}, unexpected {list(unexpected)[:5]}. "
            "Build the model with the same configuration as the run that was saved."
        )
    tie = getattr(model, "tie_weights", None)
    if callable(tie):
        tie()


def _tied_names(model: nn.Module) -> set[str]:
    """Names that share storage with another name, and those transformers declares tied."""
    owners: dict[int, str] = {}
    tied: set[str] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if owners.setdefault(id(tensor), name) != name:
            tied |= {name, owners[id(tensor)]}
    declared: Any = getattr(model, "_tied_weights_keys", None) or ()
    return tied | set(declared)


def _load_adapter(model: nn.Module, folder: Path) -> None:
    from peft import set_peft_model_state_dict

    set_peft_model_state_dict(model, load_file(folder / ADAPTER))
