"""A ``checkpoint-N`` folder of transformers' Trainer, read without running anything in it.

``training_args.bin`` is never read: it is a pickled object of a class, which cannot be restored without running code.
The arguments of a resumed run come from the script, as they do under transformers.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from trainwright.checkpoint.interchange.foreign import Foreign, checked_optimizer, checked_schedule
from trainwright.checkpoint.interchange.random_states import Stored
from trainwright.checkpoint.interchange.random_states import from_transformers as random_from_transformers
from trainwright.checkpoint.interchange.reading import (
    UnreadableCheckpoint,
    needs,
    numpy_state_classes,
    plain,
    read_pickle,
    tensors_of,
)
from trainwright.checkpoint.weights import ADAPTER, INDEX, WEIGHTS, stored_once
from trainwright.core.state import TrainerState

STATE, OPTIMIZER, SCHEDULER, SCALER, RNG = (
    "trainer_state.json",
    "optimizer.pt",
    "scheduler.pt",
    "scaler.pt",
    "rng_state.pth",
)
ARGUMENTS = "training_args.bin"

#: Configuration, tokenizer and weights; a name with other characters could not stand in a manifest.
_COPIED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.(json|txt|model|jinja|spm|tiktoken|md|yaml|safetensors)")
_OURS = {"manifest.json", "config.yaml", "training_state.json", "optimizer.safetensors", "random.safetensors"}
_CONVERTED = {"pytorch_model.bin": WEIGHTS, "adapter_model.bin": ADAPTER}
_BIN_INDEX = "pytorch_model.bin.index.json"
_SHARDED_TRAINING = re.compile(r"(pytorch_model_fsdp|optimizer)_\d+|global_step\d+|pytorch_model_fsdp\.bin")


def read_transformers(folder: Path) -> Foreign:
    """Everything of ``folder`` that a resumed run needs."""
    _refuse_what_is_none(folder)
    weights = converted_weights(folder)
    copies, notes = _files_to_copy(folder)
    if not weights and not any(path.name in (WEIGHTS, INDEX, ADAPTER) for path in copies):
        raise UnreadableCheckpoint(f"{folder} holds no weights: neither {WEIGHTS} nor pytorch_model.bin.")
    scaler = folder / SCALER
    random, more = _random_state(folder)
    return Foreign(
        library="transformers",
        state=_trainer_state(folder),
        optimizer=checked_optimizer(read_pickle(folder / OPTIMIZER), OPTIMIZER),
        scheduler=checked_schedule(read_pickle(folder / SCHEDULER), SCHEDULER),
        scaler=plain(needs(read_pickle(scaler), dict, SCALER), SCALER) if scaler.is_file() else None,
        random=random,
        weights=weights,
        copies=copies,
        notes=notes + more,
    )


def _refuse_what_is_none(folder: Path) -> None:
    inside = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=lambda path: path.stat().st_mtime)
    if not (folder / STATE).is_file():
        hint = f" Pass one checkpoint of the run, for example {inside[-1].parent}." if inside else ""
        raise UnreadableCheckpoint(f"{folder} is no checkpoint of transformers' Trainer: it has no {STATE}.{hint}")
    parts = [path.name for path in folder.iterdir() if _SHARDED_TRAINING.fullmatch(path.name)]
    if parts:
        raise UnreadableCheckpoint(
            f"{folder} was saved in pieces by FSDP or DeepSpeed ({parts[0]}), which cannot be imported. Resume it with "
            "transformers and save a full state dict."
        )
    for name in (OPTIMIZER, SCHEDULER):
        if not (folder / name).is_file():
            raise UnreadableCheckpoint(
                f"{folder} has no {name}, so there is no training to go on with (save_only_model=True?). "
                "Load the weights with from_pretrained and start a new run instead."
            )


def _trainer_state(folder: Path) -> TrainerState:
    try:
        state = TrainerState.load_from_json(folder / STATE)
    except (TypeError, ValueError, AttributeError) as error:
        raise UnreadableCheckpoint(f"{folder / STATE} is not what transformers writes ({error}).") from None
    needs(state.global_step, int, f"{STATE}: global_step")
    # Its switches say what was due when it was saved, and transformers evaluates before it saves: nothing is.
    state.stateful_callbacks.pop("TrainerControl", None)
    return state


def _random_state(folder: Path) -> tuple[Stored | None, list[str]]:
    path, notes = folder / RNG, []
    if not path.is_file():
        path = folder / "rng_state_0.pth"
        notes = ["several processes trained it; the random state of the first is taken"]
    if not path.is_file():
        return None, ["it holds no random state; the resumed run takes that of its seed"]
    return random_from_transformers(read_pickle(path, numpy_state_classes()), path.name), notes


def converted_weights(folder: Path) -> dict[str, dict[str, Tensor]]:
    """Weights that come as pickles, by the name of the file that they get here."""
    found: dict[str, dict[str, Tensor]] = {}
    if (folder / WEIGHTS).is_file() or (folder / INDEX).is_file():
        return found
    for name, ours in _CONVERTED.items():
        if (folder / name).is_file() and not (folder / ours).is_file():
            found[ours] = stored_once(tensors_of(read_pickle(folder / name), name))
    if (folder / _BIN_INDEX).is_file() and WEIGHTS not in found:
        merged: dict[str, Tensor] = {}
        for shard in shard_names(folder / _BIN_INDEX):
            merged |= tensors_of(read_pickle(folder / shard), shard)
        found[WEIGHTS] = stored_once(merged)
    return found


def shard_names(index: Path) -> list[str]:
    """The files that an index lists; refuses names that lead out of the folder."""
    try:
        names = sorted({str(name) for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UnreadableCheckpoint(f"{index} is not an index of weights ({error!r}).") from None
    for name in names:
        if Path(name).name != name or name in ("", ".", ".."):
            raise UnreadableCheckpoint(f"{index} lists {name!r}, which is not a file beside it.")
    return names


def _files_to_copy(folder: Path) -> tuple[list[Path], list[str]]:
    """Files that go along as they are, and a note of those that do not."""
    read = {STATE, OPTIMIZER, SCHEDULER, SCALER, *_CONVERTED, _BIN_INDEX}
    shards = shard_names(folder / INDEX) if (folder / INDEX).is_file() else []
    copies: list[Path] = []
    left: list[str] = []
    for path in sorted(folder.iterdir()):
        if path.name in read or path.name.startswith(("rng_state", "pytorch_model-")):
            continue
        if path.name == ARGUMENTS:
            left.append(f"{ARGUMENTS} (a pickled object, never read: give the arguments in your script)")
        elif _is_copied(path):
            copies.append(path)
        else:
            left.append(path.name)
    missing = set(shards) - {path.name for path in copies}
    if missing:
        raise UnreadableCheckpoint(f"{folder} lacks {sorted(missing)[0]}, which {INDEX} lists.")
    for path in copies:
        if path.suffix == ".safetensors":
            check_header(path)
    return copies, [f"left out: {', '.join(left)}"] if left else []


def _is_copied(path: Path) -> bool:
    if path.name in _OURS or _COPIED.fullmatch(path.name) is None or not path.is_file():
        return False
    # A link might bring any file of this machine along; weights must be weights, so theirs are followed.
    return not path.is_symlink() or path.suffix == ".safetensors"


def check_header(path: Path) -> None:
    """Refuse a file of weights that is cut short, or none at all."""
    try:
        with safe_open(str(path), framework="pt") as file:
            file.keys()
    except (SafetensorError, OSError) as error:
        raise UnreadableCheckpoint(f"{path} is damaged ({error}). Take another checkpoint.") from None
