"""What a run was started with: ``config.yaml`` of its folder or of a checkpoint, and ``experiment.yaml``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.config.yaml12 import read_yaml_file

FILE, EXPERIMENT = "config.yaml", "experiment.yaml"
#: Sections of an experiment that are arguments, or say nothing of what is trained.
_ELSEWHERE = ("name", "training", "checkpoint", "parallel", "trackers", "search")


def stored_arguments(folder: Path) -> dict[str, Any] | None:
    """The arguments by name; None where there is no such file, or it is something else than we write."""
    return _stored(folder / FILE)


def stored_experiment(folder: Path) -> dict[str, Any]:
    """What an experiment's file says besides arguments, by dotted names; empty where a run was none.

    Sections that other records have (arguments) or that are not of the training (trackers, search) are left out.
    """
    found = _stored(folder / EXPERIMENT) or {}
    return dict(_dotted({name: value for name, value in found.items() if name not in _ELSEWHERE}))


def _dotted(value: dict[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from _dotted(inner, f"{place}{name}.")
        else:
            yield f"{place}{name}", inner


def _stored(file: Path) -> dict[str, Any] | None:
    try:
        found = read_yaml_file(file).data
        json.dumps(found)
    except (ConfigError, OSError, ValueError, TypeError, RecursionError):
        return None
    is_ours = isinstance(found, dict) and all(isinstance(name, str) for name in found)
    return found if is_ours else None
