"""Write down what users rely on by name, one file a kind below ``promised/``.

``python -m tests.architecture.promises`` writes them anew.

A line that goes, or changes, in one of these files is a break; a line that comes is a promise.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import typer.main

import trainwright
from trainwright.cli import app as cli
from trainwright.core.callback import EVENTS

HOME = Path(__file__).parent / "promised"
#: Front doors, by the name that a script imports.
DOORS = ("trainwright.compat.accmt", "trainwright.compat.pymarlin", "trainwright.compat.sparseml")


def signature(function: Callable[..., Any]) -> str:
    """Names, kinds and whether there is a default: annotations and default values may become better."""
    words = []
    for parameter in inspect.signature(function).parameters.values():
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else stars
        only = "keyword " if parameter.kind is parameter.KEYWORD_ONLY else ""
        words.append(f"{only}{stars}{parameter.name}{'' if parameter.default is parameter.empty else '='}")
    return ", ".join(words)


def methods(kind: type[Any]) -> Iterator[str]:
    """Public methods and properties of a class, those that it inherits from our own classes included."""
    for name in sorted(set(dir(kind)) - set(dir(object))):
        owner = next((c for c in kind.__mro__ if name in vars(c)), None)
        if name.startswith("_") or owner is None or not owner.__module__.startswith("trainwright."):
            continue
        found = inspect.getattr_static(kind, name)
        if isinstance(found, (staticmethod, classmethod)):
            found = found.__func__
        shown = f"({signature(found)})" if inspect.isfunction(found) else ""
        yield f"{kind.__name__}.{name}{shown}"


def public_names() -> list[str]:
    found = [f"trainwright.{name}" for name in trainwright.__all__]
    for door in DOORS:
        module = importlib.import_module(door)
        names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
        found += [f"{door}.{name}" for name in names]
    return sorted(found)


def public_methods() -> list[str]:
    found = []
    for name in sorted(trainwright.__all__):
        kind = getattr(trainwright, name)
        if inspect.isclass(kind) and issubclass(kind, enum.Enum):
            found += [f"{name}.{member.name} = {member.value!r}" for member in kind]
        elif inspect.isclass(kind) and kind.__module__.startswith("trainwright."):
            found.append(f"{name}({signature(kind)})" if "__init__" in dir(kind) else name)
            found += methods(kind)
        elif inspect.isfunction(kind):
            found.append(f"{name}({signature(kind)})")
    return found


def hooks() -> list[str]:
    """Methods of transformers' Trainer whose names begin with an underscore, and which subclasses override here too."""
    from transformers import Trainer

    own = trainwright.Trainer
    names = [name for name in dir(Trainer) if name.startswith("_") and not name.startswith("__") and hasattr(own, name)]
    return [f"Trainer.{name}({signature(getattr(own, name))})" for name in sorted(names)]


def attributes() -> list[str]:
    """What scripts and subclasses read from a Trainer, and set."""
    model = torch.nn.Linear(1, 1)
    with tempfile.TemporaryDirectory() as folder:
        args = trainwright.TrainingArguments(folder, report_to="none", use_cpu=True, disable_tqdm=True)
        trainer = trainwright.Trainer(model, args, train_dataset=[])
        found = [name for name in dir(trainer) if not name.startswith("_") and not callable(getattr(trainer, name))]
    return sorted({*found, "model", "model_wrapped", "data_collator", "compute_metrics"})


def training_arguments() -> list[str]:
    found = []
    for kind in (trainwright.TrainingArguments, trainwright.Seq2SeqTrainingArguments):
        for field in dataclasses.fields(kind):
            default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
            found.append(f"{kind.__name__}.{field.name}{default}")
    return found


def commands() -> list[str]:
    """Every command with its arguments and flags."""
    return list(_commands(typer.main.get_command(cli.app), "trainwright"))


def _commands(command: Any, name: str) -> Iterator[str]:
    for parameter in sorted(command.params, key=lambda p: p.name or ""):
        flags = [*parameter.opts, *parameter.secondary_opts]
        yield f"{name} {'/'.join(flags) if parameter.param_type_name == 'option' else parameter.name.upper()}"
    for word, inner in sorted(getattr(command, "commands", {}).items()):
        yield f"{name} {word}"
        yield from _commands(inner, f"{name} {word}")


def events() -> list[str]:
    return list(EVENTS)


PROMISES: dict[str, Callable[[], list[str]]] = {
    "names": public_names,
    "methods": public_methods,
    "hooks": hooks,
    "attributes": attributes,
    "arguments": training_arguments,
    "commands": commands,
    "events": events,
}


def main() -> None:
    for name, found in PROMISES.items():
        (HOME / f"{name}.txt").write_text("\n".join(found()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
