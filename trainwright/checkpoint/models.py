"""A model in a folder, to be used and not to be resumed: replaced as a whole, in any of the usual file formats."""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from trainwright.checkpoint.durable import aside_of, discard, publish, staging_of, write_text
from trainwright.checkpoint.left_out import LeftOut
from trainwright.checkpoint.weights import save_config
from trainwright.core.fsync import force_folder
from trainwright.core.json_files import read_json

logger = logging.getLogger("trainwright")

STATUS = "status.json"
BIN = "pytorch_model"
SAFE = "model"
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B\s*", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def bytes_of(size: str | int) -> int:
    """A size such as "10GB" in bytes.

    >>> bytes_of("10GB"), bytes_of("1KiB"), bytes_of(5)
    (10000000000, 1024, 5)
    """
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if match is None or float(match[1]) == 0:
        raise ValueError(f'max_shard_size={size!r}: write a size, such as "10GB" or "500MB".')
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].upper()])


class ModelFolder:
    """One model on disk, replaced in one moment; what others put into the folder stays."""

    def __init__(self, path: Path, *, safe_serialization: bool = True, max_shard_size: str | int = "50GB") -> None:
        #: A link is followed: it stays one, and what is replaced is the folder it leads to.
        self.path = path.resolve()
        self._safe, self._shard_size = safe_serialization, bytes_of(max_shard_size)

    def save(self, model: nn.Module, status: dict[str, Any]) -> None:
        """Write ``model`` and ``status`` beside the folder, force them to disk, then take the folder's place."""
        draft = staging_of(self.path)
        discard(draft)
        draft.mkdir(parents=True)
        self._write(model, draft)
        # Names of files and, of those in sub-folders, of the folder: what is replaced by the next model.
        written = sorted(path.name for path in draft.iterdir())
        status = {**_strict(status), "files": written}
        write_text(draft / STATUS, json.dumps(status, indent=2) + "\n", force=False)
        force_folder(draft)
        self._clean_up_aside()
        publish(draft, self.path, rescue=self._move_what_is_not_ours)

    def _write(self, model: nn.Module, draft: Path) -> None:
        """By the model's own code where it has some; in the plain form where it has none, or that fails."""
        left_out = LeftOut()
        save_pretrained: Any = getattr(model, "save_pretrained", None)
        is_written = False
        if self._safe and callable(save_pretrained):
            write = functools.partial(save_pretrained, str(draft), max_shard_size=self._shard_size)
            is_written = left_out.add_files("the files that its own code writes", draft, write)
        if not is_written:
            left_out.add_files("its configuration", draft, lambda: save_config(model, draft))
            _write_tensors(_plain_tensors(model, apart=self._safe), draft, self._shard_size, safe=self._safe)
        for what in left_out.reasons:
            logger.error("The model in %s is saved without %s.", self.path, what)

    def refuse_what_is_no_folder(self) -> None:
        """A file where the folder, or one that it lies in, should be: say so before anybody trains."""
        there = next((place for place in (self.path, *self.path.parents) if place.exists()), None)
        if there is not None and not there.is_dir():
            raise ValueError(
                f"The model cannot go to {self.path}: {there} is a file. Move it, or choose another folder."
            )

    def status(self) -> dict[str, Any]:
        """What was said of the model that is there; empty where there is none."""
        try:
            found = read_json(self.path / STATUS)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def clean_up(self) -> None:
        """Finish what a killed process had begun: there is a whole model, or none, afterwards."""
        discard(staging_of(self.path))
        if aside_of(self.path).is_dir() and not self.path.exists():
            os.rename(aside_of(self.path), self.path)
        self._clean_up_aside()

    def _clean_up_aside(self) -> None:
        """Delete the model that the present one replaced, but for what others had put there."""
        old = aside_of(self.path)
        if old.is_dir() and self.path.exists():
            self._move_what_is_not_ours(old)
            discard(old)

    def _move_what_is_not_ours(self, old: Path) -> None:
        """Files of others into the new folder."""
        ours = {STATUS, *_files_of(old)}
        for entry in old.iterdir():
            if entry.name not in ours and not (self.path / entry.name).exists():
                os.rename(entry, self.path / entry.name)


def _files_of(folder: Path) -> list[str]:
    """The files that a save wrote into ``folder``, by its status; of another's folder, none."""
    try:
        listed = read_json(folder / STATUS)["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [str(name) for name in listed] if isinstance(listed, list) else []


def _plain_tensors(model: nn.Module, *, apart: bool) -> dict[str, Tensor]:
    """The state of ``model`` as plain tensors in main memory; ``apart``: none shares memory with another.

    Two names of one tensor are both kept: whoever loads strictly finds both.
    """
    found: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, Tensor):
            continue
        plain = tensor.detach().cpu().contiguous()
        is_part = plain.untyped_storage().nbytes() != plain.nbytes
        if is_part or (apart and plain.data_ptr() in places):
            plain = plain.clone()
        places.add(plain.data_ptr())
        found[name] = plain
    return found


def _write_tensors(tensors: dict[str, Tensor], folder: Path, most: int, *, safe: bool) -> None:
    """One file, or several with an index, as ``from_pretrained`` expects them."""
    stem, ending = (SAFE, "safetensors") if safe else (BIN, "bin")
    shards: list[dict[str, Tensor]] = [{}]
    filled = 0
    for name, tensor in tensors.items():
        if shards[-1] and filled + tensor.nbytes > most:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor
        filled += tensor.nbytes
    if len(shards) == 1:
        _write_file(shards[0], folder / f"{stem}.{ending}", safe=safe)
        return
    where: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"{stem}-{number:05d}-of-{len(shards):05d}.{ending}"
        _write_file(shard, folder / file, safe=safe)
        where |= dict.fromkeys(shard, file)
    size = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": where}
    (folder / f"{stem}.{ending}.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_file(tensors: dict[str, Tensor], path: Path, *, safe: bool) -> None:
    if safe:
        save_file(tensors, path, {"format": "pt"})
    else:
        torch.save(tensors, path)


def _strict(value: object) -> Any:
    """Only what JSON has: numbers that are not finite become None."""
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
