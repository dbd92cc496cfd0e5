"""Checkpoints that go to a ``Checkpointer`` instead of the run directory.

A checkpoint is built as a folder in a scratch place, exactly as it would be in the run directory, then read into a
``Checkpoint`` and handed over; a resume goes the other way round. So both kinds hold the same and resume alike."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from trainwright.checkpoint.directory import checkpoint_path
from trainwright.checkpoint.durable import FileFacts, discard, write_file, write_text
from trainwright.checkpoint.manifest import NAME as MANIFEST
from trainwright.checkpoint.manifest import write_manifest
from trainwright.checkpoint.pack import file_chunks
from trainwright.checkpoint.sharded import StoredTensors
from trainwright.checkpoint.states import split_state
from trainwright.checkpoint.training_state import CALLBACKS, OPTIMIZER, RANDOM, TRAINING
from trainwright.checkpoint.weights import WEIGHTS, copied_apart, save_weights, stored_once
from trainwright.config.arguments import TrainingArguments
from trainwright.config.fields import ours
from trainwright.core.checkpointer import Checkpoint, Checkpointer

STATE = "trainer_state.json"


class CheckpointDelivery:
    """A checkpointer, and the scratch place in which its checkpoints are built and read."""

    def __init__(self, checkpointer: Checkpointer) -> None:
        self.checkpointer = checkpointer
        self._scratch: Path | None = None

    def home(self) -> Path:
        """Where checkpoint folders are for a moment."""
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="trainwright-"))
        return self._scratch

    def deliver(self, staging: Path, step: int) -> None:
        """Hand a finished folder over; what the checkpointer raises is a failed save."""
        self.checkpointer.save(checkpoint_from_folder(staging, step), step)
        discard(staging)

    def fetch(self) -> Path | None:
        """The checkpointer's checkpoint as a folder; None if it has none."""
        # Asked first: to find out what there is need not mean to fetch it.
        checkpoint = None if self.checkpointer.latest() is None else self.checkpointer.load()
        if not checkpoint:
            return None
        folder = checkpoint_path(self.home(), int(checkpoint.backend_state.get("step", 0)))
        write_folder(checkpoint, folder)
        return folder

    def save_model(self, model: nn.Module, step: int) -> None:
        """Hand over the weights of a finished model, with the names they have in ``model.safetensors``."""
        found = copied_apart(model)
        if found is not None:
            tensors, convert = found
            weights = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
            self.checkpointer.save_model(convert(weights) if convert is not None else weights, step)
            return
        folder = self.home() / "model"
        save_weights(model, folder)
        weights = {name: t for path in sorted(folder.glob("*.safetensors")) for name, t in load_file(path).items()}
        self.checkpointer.save_model(weights or stored_once(model.state_dict()), step)
        discard(folder)

    def close(self) -> None:
        """The training is over: let the checkpointer finish, and clear up."""
        try:
            self.checkpointer.close()
        finally:
            if self._scratch is not None:
                shutil.rmtree(self._scratch, ignore_errors=True)
                self._scratch = None


def delivery_to(args: TrainingArguments, checkpointer: Checkpointer | None) -> CheckpointDelivery | None:
    """What takes checkpoints elsewhere; None where they go to the run directory."""
    if checkpointer is None:
        return None
    refuse_with_checkpointer(args)
    return CheckpointDelivery(checkpointer)


def refuse_with_checkpointer(args: TrainingArguments) -> None:
    """Arguments that look for checkpoints in the run directory, where there are none."""
    in_run_directory = {
        "load_best_model_at_end": args.load_best_model_at_end,
        "rewind_on_nonfinite": ours(args).rewind_on_nonfinite,
    }
    for name, is_set in in_run_directory.items():
        if is_set:
            raise ValueError(
                f"{name}=True needs the checkpoints in output_dir, but checkpointer= sends them elsewhere: unset one "
                "of the two."
            )
    if args.push_to_hub and args.hub_strategy != "end":
        raise ValueError(
            "push_to_hub=True uploads checkpoints from output_dir, but checkpointer= sends them elsewhere: set "
            "hub_strategy='end'."
        )


def checkpoint_from_folder(folder: Path, step: int) -> Checkpoint:
    """Read a finished checkpoint folder."""
    files: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in (MANIFEST, WEIGHTS, STATE):
            files[name] = _contents(folder, name)
    weights = StoredTensors(folder, WEIGHTS) if (folder / WEIGHTS).is_file() else {}
    state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    return Checkpoint(dict(weights), state, {"step": step, "files": files})


def write_folder(checkpoint: Checkpoint, folder: Path) -> None:
    """Write ``checkpoint`` as the folder it was made from, sealed."""
    if "files" not in checkpoint.backend_state or "step" not in checkpoint.backend_state:
        raise ValueError(
            "checkpointer.load() returned a Checkpoint whose backend_state has no 'step' and 'files': it must return "
            "what save() was given, or None."
        )
    discard(folder)
    folder.mkdir(parents=True)
    facts: dict[str, FileFacts] = {}
    if checkpoint.module_state:
        facts[WEIGHTS] = write_file(folder / WEIGHTS, file_chunks(checkpoint.module_state))
    facts[STATE] = write_text(folder / STATE, json.dumps(checkpoint.trainer_state, indent=2, sort_keys=True) + "\n")
    for name, contents in checkpoint.backend_state["files"].items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"The checkpoint names a file outside its folder: {name!r}. It was not written by us.")
        path.parent.mkdir(parents=True, exist_ok=True)
        facts[name] = _write(path, name, contents)
    write_manifest(folder, facts, int(checkpoint.backend_state["step"]))


def _contents(folder: Path, name: str) -> Any:
    path = folder / name
    if name in (OPTIMIZER, RANDOM, CALLBACKS):
        return dict(StoredTensors(folder, name))
    # Anything else byte for byte: other files may say something in their metadata too.
    data = path.read_bytes()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return json.loads(text) if name == TRAINING else text


def _write(path: Path, name: str, contents: object) -> FileFacts:
    if isinstance(contents, Tensor):
        return write_file(path, [contents.numpy().data])
    if isinstance(contents, str):
        return write_text(path, contents)
    if name.endswith(".safetensors"):
        tensors, _ = split_state(contents)
        return write_file(path, file_chunks(tensors))
    return write_text(path, json.dumps(contents, indent=2, sort_keys=True) + "\n")
