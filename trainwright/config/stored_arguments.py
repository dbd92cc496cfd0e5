"""``config.yaml`` of a run directory or checkpoint: the arguments that it was written with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.config.yaml12 import read_yaml_file

FILE = "config.yaml"


def stored_arguments(folder: Path) -> dict[str, Any] | None:
    """The arguments by name; None where there is no such file, or it is something else than we write."""
    try:
        found = read_yaml_file(folder / FILE).data
        json.dumps(found)
    except (ConfigError, OSError, ValueError, TypeError, RecursionError):
        return None
    is_ours = isinstance(found, dict) and all(isinstance(name, str) for name in found)
    return found if is_ours else None
