"""Weights of a model with adapters (PEFT) in a checkpoint: its own files, and what those leave out.

PEFT writes the adapter "default" into the folder and every other one into a sub-folder with its name. What a run trains
besides (a head that somebody unfroze, statistics of BatchNorm) goes into a file of ours, so that nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.checkpoint.manifest import holds
from trainwright.checkpoint.pieces import piece_of
from trainwright.checkpoint.sharded import StoredTensors, is_stored

ADAPTER = "adapter_model.safetensors"
BESIDE = "beside_adapters.safetensors"
#: Of names in adapters' files, where transformers and not PEFT wrote them.
_PREFIX = "base_model.model."
_COPIES = "modules_to_save"


def adapter_files(model: nn.Module, folder: Path) -> dict[str, str]:
    """Files of a checkpoint with adapters of ``model``, by adapter; empty for a model or folder without any."""
    names = list(getattr(model, "peft_config", None) or ())
    found = {name: f"{name}/{ADAPTER}" for name in names if holds(folder, f"{name}/{ADAPTER}")}
    if holds(folder, ADAPTER) and (at_top := _adapter_at_top(model, names)) is not None:
        found[at_top] = ADAPTER
    return found


def _adapter_at_top(model: nn.Module, names: list[str]) -> str | None:
    """The adapter whose files have no sub-folder: PEFT's "default" or, in a model of transformers, the active one."""
    if "default" in names:
        return "default"
    active = getattr(model, "active_adapters", None)
    active = active() if callable(active) else active
    return active[0] if active else None


def left_out_by_adapters(model: nn.Module, folder: Path) -> dict[str, Tensor]:
    """Return what of ``model`` a resume needs and no adapter's file in ``folder`` holds: trained weights, buffers."""
    covered = _stored_names(model, _open_files(model, folder))
    needed = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    needed |= {name for name, _ in model.named_buffers()}
    return {name: t for name, t in model.state_dict().items() if name in needed and name not in covered}


def load_adapters(model: nn.Module, folder: Path) -> None:
    """Read the weights that a run with adapters had trained; of a model in parts, what is here of it."""
    files = _open_files(model, folder)
    places = {name: (files[adapter], key) for name, (adapter, key) in _stored_names(model, files).items()}
    if is_stored(folder, BESIDE):
        beside = StoredTensors(folder, BESIDE)
        places |= {name: (beside, name) for name in beside}
    own = model.state_dict()
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    missing, unexpected = [n for n in trained if n not in places], [n for n in places if n not in own]
    if missing and set(files) == {"default"} and not is_stored(folder, BESIDE):
        # A release that kept no file beside them: PEFT may know other names for these.
        _load_as_peft_does(model, files["default"], folder)
        return
    if missing or unexpected:
        raise ValueError(
            f"The adapters in {folder} do not fit the model: missing {missing[:5]}, unexpected {unexpected[:5]}. Build "
            "the model with the same adapters, under the same names, as the run that was saved."
        )
    with torch.no_grad():
        for name, (stored, key) in places.items():
            piece = piece_of(own[name])
            piece.tensor.copy_(stored.part(key, piece.offset, tuple(piece.tensor.shape)))


def _open_files(model: nn.Module, folder: Path) -> dict[str, StoredTensors]:
    return {adapter: StoredTensors(folder, file) for adapter, file in adapter_files(model, folder).items()}


def _stored_names(model: nn.Module, files: Mapping[str, StoredTensors]) -> dict[str, tuple[str, str]]:
    """For each tensor of ``model`` that a file holds: the adapter whose file it is, and the tensor's name there.

    Files leave out the name of the adapter. Where two tensors would have one name, neither is taken to be stored.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for name, tensor in model.state_dict().items():
        for adapter, file in files.items():
            for key in _names_in_file(name, adapter):
                if key in file and file.shape(key) == tuple(tensor.shape):
                    found.setdefault((adapter, key), []).append(name)
    return {names[0]: place for place, names in found.items() if len(names) == 1}


def _names_in_file(name: str, adapter: str) -> Iterator[str]:
    """Names under which PEFT may have stored the tensor ``name``.

    >>> list(_names_in_file("head.modules_to_save.mine.bias", "mine"))[1]
    'head.bias'
    """
    yield name
    words = name.split(".")
    for place, word in enumerate(words):
        if word == adapter:
            before = words[:place]
            before = before[:-1] if before[-1:] == [_COPIES] else before
            short = ".".join([*before, *words[place + 1 :]])
            yield short
            yield f"{_PREFIX}{short}"


def _load_as_peft_does(model: nn.Module, stored: StoredTensors, folder: Path) -> None:
    from peft import set_peft_model_state_dict

    result: Any = set_peft_model_state_dict(model, dict(stored))
    if unexpected := list(getattr(result, "unexpected_keys", ())):
        raise ValueError(f"{folder} holds an adapter for layers that the model does not have: {unexpected[:5]}.")
