"""What in an experiment's file would make code run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainwright.config.experiment import ARGUMENT_SECTIONS, NAMED_SECTIONS, Experiment, ModelSection
from trainwright.config.registry import split_reference
from trainwright.config.yaml12 import Place

#: Options that let code from elsewhere run: as much a matter of trust as a file.
_RUNS_CODE = ("trust_remote_code", "use_kernels", "allow_all_kernels")


def loss_name(model: ModelSection) -> tuple[Place, str | None]:
    """The loss that an experiment names, and where."""
    said = model.loss
    return (("model", "loss", "name"), said["name"]) if isinstance(said, dict) else (("model", "loss"), said)


def _options_that_run_code(place: Place, options: Mapping[str, Any]) -> Iterable[tuple[Place, str]]:
    for key, value in options.items():
        if isinstance(value, dict):
            yield from _options_that_run_code((*place, key), value)
        # A kernel of the Hub is Python that is downloaded and run; weights_only: false unpickles.
        is_kernel = key == "attn_implementation" and "/" in str(value)
        if (key in _RUNS_CODE and value) or is_kernel or (key == "weights_only" and value is not True):
            yield (*place, key), f"{key}: {value}"


def code_references(experiment: Experiment) -> list[tuple[Place, str]]:
    """Every value that would make code run, and where it stands."""
    model, data = experiment.model, experiment.data
    candidates: list[tuple[Place, Any]] = [
        (("model", "name"), model.name),
        (("model", "metrics"), model.metrics),
        loss_name(model),
        *((("data", part), getattr(data, part)) for part in ("train", "eval", "test")),
        *((("phases", name, "data"), phase.data) for name, phase in experiment.phases.items()),
    ]
    for section in NAMED_SECTIONS:
        candidates += [((section, name), name) for name in getattr(experiment, section)]
    for section in ARGUMENT_SECTIONS:
        trackers = getattr(experiment, section).get("report_to")
        names = trackers if isinstance(trackers, list) else [trackers]
        candidates += [((section, "report_to"), name) for name in names]
    found = [(place, value) for place, value in candidates if split_reference(value) is not None]
    for section, options in (("model", model.options), ("data", data.options)):
        found += _options_that_run_code((section, "options"), options)
    for number, options in enumerate(model.ensemble.configurations if model.ensemble else ()):
        found += _options_that_run_code(("model", "ensemble", "configurations", number), options)
    return found
