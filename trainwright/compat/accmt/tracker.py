"""Trackers as ``from accmt import TensorBoard`` has them: other names of trainwright's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainwright.compat.accmt.settings import Settings, near_argument
from trainwright.trackers import TRACKERS, options_by_tracker, tracker_name
from trainwright.trackers.aim import AimTracker as Aim
from trainwright.trackers.clearml import ClearmlTracker as ClearML
from trainwright.trackers.comet import CometTracker as CometML
from trainwright.trackers.dvclive import DvcliveTracker as DVCLive
from trainwright.trackers.mlflow import MlflowTracker as MLFlow
from trainwright.trackers.servers import server_address
from trainwright.trackers.tensorboard import TensorBoardTracker as TensorBoard
from trainwright.trackers.wandb import WandbTracker as WandB

__all__ = ["Aim", "ClearML", "CometML", "DVCLive", "MLFlow", "TensorBoard", "WandB"]

#: Options that every tracker has, because a run has them.
_OF_THE_RUN = ("run_name", "tags")


def tracking_settings(settings: Settings, options: dict[str, Any]) -> dict[str, Any]:
    """What ``TrainingArguments`` is told about trackers: ``log_with``, ``logging_dir`` and what is left of the rest."""
    given = settings.log_with
    specs = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
    specs = [_known_name(spec) for spec in specs]
    own = tuple(name for name in Settings.__dataclass_fields__ if name != "later")
    for name in options if not specs else ():
        raise ValueError(
            f"The Trainer has no argument {name!r}{near_argument(name, own)}, and no tracker (log_with) that could "
            "take it."
        )
    if not specs:
        return {"report_to": "none"}
    rest = {name: value for name, value in options.items() if name not in _OF_THE_RUN}
    try:
        by_tracker = options_by_tracker([spec for spec in specs if _is_buildable(spec)], rest)
    except ValueError as error:
        near = next((text for name in rest if (text := near_argument(name, own))), "")
        raise ValueError(f"{error}{near}") from None
    tags = options.get("tags")
    place = str(settings.logging_dir)
    return {
        "report_to": specs,
        "tracker_options": {name: values for name, values in by_tracker.items() if values} or None,
        "run_name": options.get("run_name"),
        "tags": [tags] if isinstance(tags, str) else None if tags is None else list(tags),
        # A folder for each model: several share one logging_dir.
        "logging_dir": place if server_address(place) else str(Path(place) / settings.project),
    }


def _known_name(spec: Any) -> Any:
    """Names in any spelling: "MLFlow", "CometML"."""
    if isinstance(spec, str) and spec not in TRACKERS:
        spellings = {"cometml": "comet_ml", **{name.lower(): name for name in TRACKERS}}
        return spellings.get(spec.lower(), spec)
    return tracker_name(spec) if isinstance(spec, type) and spec in TRACKERS.values() else spec


def _is_buildable(spec: Any) -> bool:
    return isinstance(spec, (str, type))
