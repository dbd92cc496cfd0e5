"""Tasks by name, and which one an experiment means."""

from __future__ import annotations

from trainwright.config.errors import ConfigError
from trainwright.config.loading import Loaded
from trainwright.config.registry import find, registered
from trainwright.experiment.models import is_local, task_of_pretrained
from trainwright.experiment.tasks.base import TaskKit

_BY_DATA = {"digits": "image-classification", "characters": "causal-lm"}
_BY_MODEL = {"mlp": "tabular", "cnn": "image-classification", "char-lm": "causal-lm"}


def task_name(loaded: Loaded) -> str:
    """The task that the experiment names, or that its model or data leaves no doubt about."""
    model, data = loaded.experiment.model, loaded.experiment.data
    if model.task is not None:
        return model.task
    if data.train in _BY_DATA:
        return _BY_DATA[data.train]
    if model.name in _BY_MODEL:
        return _BY_MODEL[model.name]
    if is_local(loaded):
        return "own"
    found = task_of_pretrained(loaded)
    if found is None:
        raise ConfigError(
            f"{loaded.where(('model',))}: {model.name} does not say what it was made for: set model.task to one of "
            f"{', '.join(registered('task'))}."
        )
    return found


def task_kit(name: str) -> TaskKit:
    """What does the work of a task."""
    kit = find("task", name, "model.task")()
    lacking = [method for method in ("defaults", "prepare") if not callable(getattr(kit, method, None))]
    if lacking:
        raise ConfigError(f"model.task: {name!r} makes a {type(kit).__name__}, which lacks {' and '.join(lacking)}.")
    return kit
