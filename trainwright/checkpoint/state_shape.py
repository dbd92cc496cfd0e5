"""The shape of the two JSON files that say where a run is: whoever can write a file can write its hash as well."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwright.core.json_files import read_json

#: A run that logs every step for days.
_LARGEST = 2**30
#: More steps than this no run takes, and no floating-point number tells apart.
_MOST_STEPS = 2**53
_NOTHING = type(None)
_LOG_FILES = {"metrics.jsonl", "log_history.jsonl"}
#: By file: keys that must be there, and of what kind they are.
_NEEDED: dict[str, dict[str, tuple[type, ...]]] = {
    "trainer_state.json": {"global_step": (int,), "log_history": (list,)},
    "log.json": {
        **dict.fromkeys(("entries", "lines", "first", "evaluations", "evaluations_before"), (int,)),
        "files": (dict,),
    },
    "training_state.json": {
        "optimizer": (dict,),
        "scheduler": (dict, _NOTHING),
        "random": (dict, _NOTHING),
        "data": (dict,),
    },
}
#: The same for keys that some releases did not write.
_IF_THERE: dict[str, dict[str, tuple[type, ...]]] = {
    "trainer_state.json": {"stateful_callbacks": (dict,), "max_steps": (int,)},
    "log.json": {},
    "training_state.json": {
        "callbacks": (dict,),
        "last_step": (dict,),
        "loss": (dict,),
        "parameters": (dict,),
        "processes": (int,),
        "scaler": (dict, _NOTHING),
        "tools": (dict,),
    },
}


def state_problems(folder: Path, files: Mapping[str, Any]) -> list[str]:
    """List what is wrong with the states among ``files``, each as a short sentence."""
    found = [] if files else ["its manifest lists no file"]
    for name in _NEEDED:
        if name in files:
            try:
                _check(name, read_json(folder / name, _LARGEST))
            except ValueError as error:
                found.append(f"{name} is not a state of a run ({error})")
            except OSError as error:
                found.append(f"{name} cannot be read ({error.strerror})")
    return found


def _check(name: str, state: object) -> None:
    if not isinstance(state, dict):
        raise ValueError("it is not an object")
    if missing := [key for key in _NEEDED[name] if key not in state]:
        raise ValueError(f"it has no {missing[0]}")
    for key, kinds in {**_NEEDED[name], **_IF_THERE[name]}.items():
        if key in state and (not isinstance(state[key], kinds) or isinstance(state[key], bool)):
            raise ValueError(f"its {key} is of the wrong kind")
    for key in ("global_step", "processes", "entries", "lines", "first", "evaluations", "evaluations_before"):
        if not 0 <= state.get(key, 0) < _MOST_STEPS:
            raise ValueError(f"its {key} is {str(state[key])[:20]}")
    if name == "log.json" and not _are_marks(state["files"]):
        raise ValueError("its files are not those of a log")


def _are_marks(files: dict[str, Any]) -> bool:
    return files.keys() == _LOG_FILES and all(
        isinstance(mark, dict)
        and mark.keys() == {"bytes", "sha256"}
        and type(mark["bytes"]) is int
        and 0 <= mark["bytes"] < _MOST_STEPS
        and isinstance(mark["sha256"], str)
        for mark in files.values()
    )
