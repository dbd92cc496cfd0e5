"""Keys that a task has no use for: said, and not passed over."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from trainwright.config.arguments import TrainingArguments
from trainwright.config.loading import Loaded
from trainwright.config.registry import split_reference
from trainwright.experiment.models import is_local
from trainwright.experiment.sources import BUILT_IN
from trainwright.experiment.tasks import task_kit

#: Keys of data: that only some tasks read.
_OF_SOME_TASKS = ("text", "target", "features", "max_length", "image_size", "augment", "train_on")
_SPLITS = ("train_split", "eval_split")


def unused_keys(loaded: Loaded, task: str) -> list[str]:
    """A line for each key that was written and does nothing."""
    data, model = loaded.experiment.data, loaded.experiment.model
    usual = {one.name: one.default for one in dataclasses.fields(data)}
    said = {name for name, default in usual.items() if name != "options" and getattr(data, name) != default}
    # A task that does not say what it reads may read anything.
    reads = getattr(task_kit(task), "reads", _OF_SOME_TASKS)
    found: list[tuple[tuple[str, ...], str]] = [
        (("data", name), f"the task {task} has no use for it")
        for name in _OF_SOME_TASKS
        if name in said and name not in reads
    ]
    if "image_size" in said and task == "image-classification" and not is_local(loaded):
        found.append((("data", "image_size"), "the model's image processor decides"))
    if "eval" in said and "holdout" in said:
        found.append((("data", "holdout"), "data.eval is what it is evaluated on"))
    if _has_no_splits(loaded):
        found += [(("data", name), "data.train is not a dataset with parts") for name in _SPLITS if name in said]
    if data.train in BUILT_IN and data.options:
        found.append((("data", "options"), f"{data.train} takes none"))
    if is_local(loaded):
        found += [(("model", "tokenizer"), "this model has none")] if model.tokenizer else []
        found += [] if model.pretrained else [(("model", "pretrained"), "this model always starts from new weights")]
    if model.chat_template is not None and task != "chat":
        found.append((("model", "chat_template"), f"the task {task} has no use for it"))
    if loaded.experiment.search is not None:
        found.append((("search",), "this is one training; trainwright sweep makes many"))
    return [f"{loaded.where(place)}: {'.'.join(place)} does nothing: {why}." for place, why in found]


def refuse_idle_settings(loaded: Loaded, args: TrainingArguments) -> None:
    """Settings that would be passed over in a training from a file, though they ask for something."""
    said = loaded.experiment.training
    if said.get("resume_from_checkpoint"):
        raise loaded.error(
            ("training", "resume_from_checkpoint"),
            "leave it out: the same command again resumes the run in its folder, and so does `trainwright resume RUN`. "
            "A particular checkpoint is for Python: Trainer(...).train(resume_from_checkpoint=...).",
        )
    if said.get("use_cpu") is False and args.engine == "torch" and args.device.type == "cpu":
        raise loaded.error(
            ("training", "use_cpu"),
            "false asks for a GPU, and torch sees none on this machine: leave it out to train on the CPU where there "
            "is no GPU, or write true.",
        )


def _has_no_splits(loaded: Loaded) -> bool:
    name = str(loaded.experiment.data.train)
    path = loaded.base_folder(("data", "train")) / Path(name).expanduser()
    return name in BUILT_IN or split_reference(name) is not None or path.is_file()
