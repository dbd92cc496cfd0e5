"""Tasks by name, and which one an experiment means."""

from __future__ import annotations

from trainwright.config.errors import ConfigError
from trainwright.config.experiment import TASKS
from trainwright.config.loading import Loaded
from trainwright.config.registry import registered, split_reference
from trainwright.experiment.models import task_of_pretrained
from trainwright.experiment.tasks.base import TaskKit
from trainwright.experiment.tasks.causal_lm import CausalLM
from trainwright.experiment.tasks.image_classification import ImageClassification
from trainwright.experiment.tasks.own import Own
from trainwright.experiment.tasks.seq2seq import Seq2Seq
from trainwright.experiment.tasks.tabular import Tabular
from trainwright.experiment.tasks.text_classification import TextClassification

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
    if split_reference(model.name) is not None or model.name in registered("model"):
        return "own"
    found = task_of_pretrained(loaded)
    if found is None:
        raise ConfigError(
            f"{loaded.where(('model',))}: {model.name} does not say what it was made for: set model.task to one of "
            f"{', '.join(TASKS)}."
        )
    return found


def task_kit(name: str) -> TaskKit:
    """What does the work of a task."""
    kits: dict[str, TaskKit] = {
        "text-classification": TextClassification(),
        "causal-lm": CausalLM(),
        "seq2seq": Seq2Seq(),
        "image-classification": ImageClassification(),
        "tabular": Tabular(None),
        "tabular-classification": Tabular("classification"),
        "tabular-regression": Tabular("regression"),
        "own": Own(),
    }
    return kits[name]
