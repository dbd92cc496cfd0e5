"""Trackers as ``from accmt import TensorBoard`` has them: other names of trainwright's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwright.compat.accmt.settings import Settings, near_argument
from trainwright.config.shipped import SHIPPED
from trainwright.trackers import options_by_tracker, options_of, servers, tracker_class, tracker_name
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
    own = (*(name for name in Settings.__dataclass_fields__ if name != "later"), *_OF_THE_RUN)
    rest = {name: value for name, value in options.items() if name not in _OF_THE_RUN}
    for name in rest if not specs else ():
        raise ValueError(
            f"The Trainer has no argument {name!r}{near_argument(name, own)}, and no tracker (log_with) that could "
            "take it."
        )
    place = None if settings.logging_dir is None else str(settings.logging_dir)
    server = None if place is None else server_address(place)
    if server is not None:
        _refuse_server(specs, server)
    tags = options.get("tags")
    of_the_run = {"run_name": _run_name(options.get("run_name")), "tags": _tags(tags)}
    if isinstance(tags, Mapping) and any(_is_buildable(spec) and _takes(spec, "tags") for spec in specs):
        rest["tags"] = dict(tags)
    if not specs:
        return {"report_to": "none", **of_the_run}
    try:
        by_tracker = options_by_tracker([spec for spec in specs if _is_buildable(spec)], rest)
    except ValueError as error:
        near = next((text for name in rest if (text := near_argument(name, own))), "")
        raise ValueError(f"{error}{near}") from None
    return {
        "report_to": specs,
        "tracker_options": {name: values for name, values in by_tracker.items() if values} or None,
        **of_the_run,
        # A folder for each model: several share one logging_dir.
        "logging_dir": place if place is None or server else str(Path(place) / settings.project),
    }


def _refuse_server(specs: list[Any], server: str) -> None:
    """An address is for all of them, so all of them must have a server."""
    if not specs:
        raise ValueError(f"logging_dir={server!r} is the address of a server: name its tracker in log_with.")
    for spec in specs:
        if not _is_buildable(spec) or not _takes(spec, "server"):
            raise ValueError(
                f"logging_dir={server!r} is the address of a server, and {tracker_name(spec)} has none; "
                f"{', '.join(servers())} have. Give a folder as logging_dir, and the address to those that take it: "
                f"server={server!r}."
            )


def _run_name(given: object) -> str | None:
    if given is not None and not isinstance(given, str):
        raise ValueError(f"run_name={given!r} must be a name.")
    return given


def _takes(spec: Any, option: str) -> bool:
    return option in options_of(tracker_class(spec))


def _tags(given: object) -> list[str] | None:
    """Words; of tags with values, for trackers that know only words, ``name:value``."""
    if isinstance(given, Mapping) and all(isinstance(part, str) for item in given.items() for part in item):
        return [f"{name}:{value}" for name, value in given.items()]
    if given is None or isinstance(given, str):
        return given if given is None else [given]
    if not isinstance(given, (list, tuple, set)) or not all(isinstance(tag, str) for tag in given):
        raise ValueError(f"tags={given!r} must be a list of words, or a dict of words.")
    return list(given)


def _known_name(spec: object) -> Any:
    """Names in any spelling: "MLFlow", "CometML"."""
    if isinstance(spec, str) and spec not in SHIPPED["tracker"]:
        return "comet_ml" if spec.lower() == "cometml" else spec.lower() if spec.lower() in SHIPPED["tracker"] else spec
    return tracker_name(spec) if isinstance(spec, type) and tracker_name(spec) in SHIPPED["tracker"] else spec


def _is_buildable(spec: object) -> bool:
    return isinstance(spec, (str, type))
