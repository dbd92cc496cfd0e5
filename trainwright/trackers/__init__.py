"""Trackers by name. Their packages are imported when a run starts, never here."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainwright.config.arguments import TrainingArguments
from trainwright.config.derive import FOREIGN_TRACKERS
from trainwright.config.fields import ours
from trainwright.config.hf_fields import TRACKIO
from trainwright.config.registry import find, load_object, split_reference, suggestion
from trainwright.config.run_directory import anchored
from trainwright.config.shipped import SHIPPED
from trainwright.core.tracker import Tracker
from trainwright.trackers.servers import server_address

#: Our own names, with the home of the class of each.
_OURS = SHIPPED["tracker"]
_METHODS = ("start", "log", "finish")


def servers() -> list[str]:
    """Names of trackers that can write to a server whose address one gives.

    >>> servers()
    ['wandb', 'comet_ml', 'aim', 'mlflow', 'clearml', 'trackio']
    """
    return [name for name in _OURS if name != "comet" and "server" in options_of(tracker_class(name))]


def tracker_class(spec: object) -> Any:
    """What makes the tracker that ``spec`` says: a name, ``my_file.py:Class``, or a class; an object is itself."""
    if not isinstance(spec, str):
        return spec
    return find("tracker", spec, "report_to") if split_reference(spec) is None else load_object(spec, "report_to")


def tracker_name(spec: object) -> str:
    """How a tracker is called in ``tracker_options``, messages and ``trackers.json``.

    >>> tracker_name("comet"), tracker_name(tracker_class("wandb")), tracker_name("mine.py:Own")
    ('comet_ml', 'wandb', 'Own')
    """
    if isinstance(spec, str) and spec not in _OURS:
        reference = split_reference(spec)
        return spec if reference is None else reference[1]
    cls = spec if isinstance(spec, type) else type(spec)
    home = _OURS[spec] if isinstance(spec, str) else f"{cls.__module__}:{cls.__name__}"
    return next((name for name, known in _OURS.items() if known == home), cls.__name__)


def options_of(cls: Any) -> list[str]:
    """Names of the keyword arguments that a tracker's class takes."""
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):
        return []
    return [parameter.name for parameter in parameters if parameter.kind != parameter.VAR_KEYWORD]


def _takes_anything(cls: Any) -> bool:
    parameters = inspect.signature(cls).parameters.values()
    return any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters)


def build_tracker(
    spec: object, options: dict[str, Any] | None = None, *, server: str | None = None, logging_dir: str | None = None
) -> Tracker:
    """The tracker that ``spec`` says: a name, ``my_file.py:Class``, a class, or an object, which is returned as it is.

    ``options`` are keyword arguments of its class. Whoever passes ``my_file.py:Class`` has made sure that the user
    allowed that file to run.

    >>> build_tracker("mlflow", {"project": "mine"}, server="http://localhost:5000").project
    'mine'
    """
    cls, name, given = tracker_class(spec), tracker_name(spec), dict(options or {})
    if not isinstance(cls, type) and not inspect.isroutine(cls):
        if given or server:
            what = ", ".join([*given, *(["server"] if server else [])])
            raise ValueError(f"report_to has the tracker {name} as an object: give {what} to its constructor.")
        return _checked(cls, name)
    known = options_of(cls)
    if not _takes_anything(cls):
        for wrong in (option for option in given if option not in known):
            raise ValueError(
                f"The tracker {name} has no option {wrong!r}{suggestion(wrong, known)}; it takes "
                f"{', '.join(known) or 'none'}."
            )
    if server is not None:
        _refuse_server(name, known, server)
        given.setdefault("server", server)
    if logging_dir is not None:
        place = _place(name, Path(logging_dir))
        if place is not None and place[0] in known and not given.keys() & {"folder", "file"}:
            given[place[0]] = place[1]
    return _checked(cls(**given), name)


def _refuse_server(name: str, known: list[str], server: str) -> None:
    if "server" not in known:
        raise ValueError(
            f"{server!r} is the address of a server, and {name} has none; {', '.join(servers())} have. Give a folder, "
            "or give the address to one tracker only: tracker_options={'mlflow': {'server': ...}}."
        )


def _place(name: str, folder: Path) -> tuple[str, Path] | None:
    """The option that says where a tracker writes, and its value in ``folder``."""
    if name not in _OURS:
        return None
    if name == "jsonl":
        return "file", folder / "tracker.jsonl"
    # The one has it for itself, the other makes its own folder in it.
    return "folder", folder if name in ("tensorboard", "wandb") else folder / name


def _checked(tracker: Any, name: str) -> Tracker:
    missing = [method for method in _METHODS if not callable(getattr(tracker, method, None))]
    if missing:
        raise ValueError(
            f"The tracker {name} lacks {', '.join(missing)}: docs/trackers.md shows what a tracker of one's own needs."
        )
    return tracker


def options_by_tracker(specs: Iterable[Any], options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Flat keyword arguments, each for the trackers whose class takes it, by the trackers' names.

    >>> options_by_tracker(["wandb", "mlflow"], {"entity": "us", "project": "p"})
    {'wandb': {'entity': 'us', 'project': 'p'}, 'mlflow': {'project': 'p'}}
    """
    known = {tracker_name(spec): options_of(tracker_class(spec)) for spec in specs}
    for wrong in options:
        if not any(wrong in names for names in known.values()):
            all_names = sorted({option for names in known.values() for option in names})
            takes = "; ".join(f"{name} takes {', '.join(names) or 'none'}" for name, names in known.items())
            raise ValueError(
                f"{wrong!r} belongs to none of the trackers chosen{suggestion(wrong, all_names)}: "
                f"{takes or 'no tracker is chosen'}."
            )
    return {
        name: {option: value for option, value in options.items() if option in names} for name, names in known.items()
    }


def build_trackers(args: TrainingArguments) -> list[Tracker]:
    """The trackers that ``args.report_to`` names; ``metrics.jsonl`` is written in any case."""
    specs = [spec for spec in args.report_to or () if not (isinstance(spec, str) and spec in FOREIGN_TRACKERS)]
    options = ours(args).tracker_options or {}
    assert not isinstance(options, str)
    server = server_address(args.logging_dir) if args.logging_dir else None
    folder = None if server or args.logging_dir is None else str(anchored(args, args.logging_dir))
    return [
        build_tracker(
            spec,
            {**_of_arguments(args, spec), **options.get(tracker_name(spec), {})},
            server=server,
            logging_dir=folder,
        )
        for spec in specs
    ]


def _of_arguments(args: TrainingArguments, spec: object) -> dict[str, Any]:
    """Options that arguments of transformers are, for one of the trackers."""
    if spec != "trackio":
        return {}
    given = {name.removeprefix("trackio_"): getattr(args, name) for name in TRACKIO}
    return {name: value for name, value in {**given, "private": args.hub_private_repo}.items() if value is not None}
