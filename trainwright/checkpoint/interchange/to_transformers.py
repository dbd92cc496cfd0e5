"""Our checkpoint as a folder that transformers' Trainer resumes from.

What transformers keeps as pickles is written as plain tensors and containers, so that ``torch.load(weights_only=True)``
reads each of the files without being told of any class.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from torch import Tensor

from trainwright.checkpoint.durable import discard, publish, staging_of
from trainwright.checkpoint.interchange.continuing import for_groups, transformers_order
from trainwright.checkpoint.interchange.from_transformers import ARGUMENTS, OPTIMIZER, RNG, SCALER, SCHEDULER, STATE
from trainwright.checkpoint.interchange.importing import refuse_to_overwrite
from trainwright.checkpoint.interchange.random_states import to_transformers
from trainwright.checkpoint.manifest import NAME as MANIFEST
from trainwright.checkpoint.manifest import has_manifest, read_manifest, verify
from trainwright.checkpoint.optimizer_state import unflatten_optimizer
from trainwright.checkpoint.stored_log import LOG, find_log, read_stored_log, whole_history
from trainwright.checkpoint.training_state import CALLBACKS, RANDOM, TRAINING, load_training_state, stored_schedule
from trainwright.checkpoint.training_state import OPTIMIZER as OUR_OPTIMIZER
from trainwright.core.fsync import force_folder
from trainwright.core.log_history import LogUnreadable
from trainwright.core.state import TrainerState

#: Files that only we read.
_OURS = {OUR_OPTIMIZER, RANDOM, TRAINING, CALLBACKS, MANIFEST, LOG, "config.yaml"}
_THEIRS = {OPTIMIZER, SCHEDULER, RNG, SCALER, ARGUMENTS, STATE}
#: What transformers' TrainerState takes; it refuses any other name.
STATE_FIELDS = frozenset(
    """
    epoch global_step max_steps logging_steps eval_steps save_steps train_batch_size num_train_epochs
    num_input_tokens_seen total_flos log_history best_metric best_global_step best_model_checkpoint
    is_local_process_zero is_world_process_zero is_hyper_param_search trial_name trial_params stateful_callbacks
    """.split()  # noqa: SIM905
)


_SHORT_LOG = "log_history holds the newest entries only: metrics.jsonl with the others is not beside the checkpoint"


class Exported(NamedTuple):
    """What an export made."""

    folder: Path
    step: int
    notes: list[str]


def export_checkpoint(checkpoint: str | Path, output: str | Path | None = None) -> Exported:
    """Write ``checkpoint`` as transformers keeps one; by default to ``exported/checkpoint-N`` beside it."""
    source = Path(checkpoint)
    if not has_manifest(source):
        raise ValueError(
            f"{source} is not a finished checkpoint of trainwright. Pass the path of a checkpoint-N folder."
        )
    verify(source)
    manifest = read_manifest(source)
    target = Path(output) if output is not None else source.parent / "exported" / source.name
    refuse_to_overwrite(target)
    staging = staging_of(target)
    discard(staging)
    staging.mkdir(parents=True)
    try:
        for name in manifest["files"]:
            if name not in _OURS | _THEIRS:
                (staging / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source / name, staging / name)
        is_whole = _write_state(source, staging / STATE)
        write_transformers_files(source, staging)
        force_folder(staging)
        publish(staging, target)
    except BaseException:
        discard(staging)
        raise
    return Exported(target, manifest["step"], [*_notes(source, manifest["step"]), *([] if is_whole else [_SHORT_LOG])])


def write_transformers_files(source: Path, target: Path) -> None:
    """From our files in ``source``, write those of transformers that hold the training's state into ``target``."""
    tensors, random, rest = load_training_state(source)
    names, groups = _groups(rest, source)
    torch.save(_optimizer(tensors, rest["optimizer"], names, groups), target / OPTIMIZER)
    torch.save(_schedule(rest, groups), target / SCHEDULER)
    if rest["random"] is not None:
        torch.save(to_transformers((random, rest["random"])), target / RNG)
    if rest["scaler"] is not None:
        torch.save(rest["scaler"], target / SCALER)
    arguments = source / "config.yaml"
    torch.save(yaml.safe_load(arguments.read_text("utf-8")) if arguments.is_file() else {}, target / ARGUMENTS)


class _Group(NamedTuple):
    """A group of parameters as transformers will have it."""

    names: list[str]
    #: Which of our groups gives the settings.
    source: int


def _groups(rest: dict[str, Any], source: Path) -> tuple[list[str], list[_Group]]:
    """Names in our numbering, and the groups to write.

    Our one group, made where nothing decays, becomes transformers' two; groups that the user made stay as they are,
    since the same script makes them under transformers too.
    """
    known = rest.get("parameters")
    if known is None:
        raise ValueError(
            f"{source} does not say how its parameters are numbered (it was imported, or saved by an older version): "
            "resume it here for one step and export the checkpoint of that."
        )
    names, stored = known["numbered"], rest["optimizer"]["param_groups"]
    made = [_Group([names[number] for number in group["params"]], index) for index, group in enumerate(stored)]
    if known["groups_are_ours"] and len(made) == 1:
        made = [_Group(part, 0) for part in transformers_order(known["order"], set(known["decay"]))]
    return names, made


def _optimizer(
    tensors: dict[str, Tensor], values: dict[str, Any], names: list[str], groups: list[_Group]
) -> dict[str, Any]:
    number_of = {name: number for number, name in enumerate(name for group in groups for name in group.names)}
    whole = unflatten_optimizer(tensors, values, list(number_of))
    written = [
        {**_settings(whole["param_groups"][group.source]), "params": [number_of[name] for name in group.names]}
        for group in groups
    ]
    state = dict(sorted(whole["state"].items(), key=lambda item: (isinstance(item[0], str), item[0])))
    return _without_numpy({**whole, "state": state, "param_groups": written})


def _without_numpy(value: Any) -> Any:
    """``value`` in tensors and plain numbers: ``torch.load(weights_only=True)`` does not read arrays."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _without_numpy(item) for key, item in value.items()}
    return type(value)(_without_numpy(item) for item in value) if type(value) in (list, tuple) else value


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """Settings of a group; JSON has made lists of tuples such as Adam's betas."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in group.items() if key != "params"}


def _schedule(rest: dict[str, Any], groups: list[_Group]) -> dict[str, Any]:
    ours = rest["optimizer"]["param_groups"]
    sources = [group.source for group in groups]
    state = for_groups(stored_schedule(rest), sources, len(ours)) or {}
    if "best" in state:
        # It follows a metric. "Nothing seen yet" is None here and infinity there.
        nothing_yet = {"min": {"best": float("inf")}, "max": {"best": float("-inf")}}.get(state.get("mode", ""), {})
        rest_of_it = {key: value for key, value in state.items() if key != "best"}
        return {**rest_of_it, **(nothing_yet if state["best"] is None else {"best": state["best"]})}
    # transformers' schedules are functions, of which nothing is kept; it wants the list all the same.
    return {"lr_lambdas": [None] * len(groups), **state}


def _write_state(source: Path, target: Path) -> bool:
    """Write the state with the whole log; False where the checkpoint holds the newest entries only."""
    stored, state = read_stored_log(source), TrainerState.load_from_json(source / STATE)
    if stored is None or not stored.is_needed:
        state.save_to_json(target)
        return True
    kept, files = state.log_history, find_log(stored, [source.parent])
    try:
        if files is not None:
            state.log_history = whole_history(stored, files, kept, in_memory=0)
            state.save_to_json(target)
            return True
    except LogUnreadable:
        # The files begin as the checkpoint says, and are no log all the same.
        state.log_history = kept
    state.save_to_json(target)
    return False


def _notes(source: Path, step: int) -> list[str]:
    """Where transformers will not go on exactly as we would."""
    data = json.loads((source / TRAINING).read_text(encoding="utf-8"))["data"]
    if "epoch" not in data:
        return []
    before = step - -(-data["batches"] // max(data["accumulation"], 1))
    fits = before == 0 if data["epoch"] == 0 else before % data["epoch"] == 0
    if fits and not data["left_out"]:
        return []
    return ["transformers finds its place in the data by counting steps, and here that is not the same place"]
