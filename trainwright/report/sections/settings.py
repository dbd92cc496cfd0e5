"""What the run was told, what was changed on the way, what it ran on, and how to do it again."""

from __future__ import annotations

import shlex
from typing import Any

from trainwright.config.arguments import TrainingArguments
from trainwright.config.secrets import redacted
from trainwright.report.blocks import Block, Code, Folded, Section, Table, Text
from trainwright.report.stored_run import StoredRun
from trainwright.report.words import shortened, value_of, when

_MOST = 400
#: Asked for first, whether they are the defaults or not.
_ALWAYS = {
    *("learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "seed"),
    *("optim", "lr_scheduler_type"),
}


def said(config: dict[str, Any]) -> dict[str, Any]:
    """Arguments that are not the defaults."""
    usual = TrainingArguments(output_dir="").to_dict()
    return {name: value for name, value in config.items() if name not in usual or usual[name] != value}


def settings_section(run: StoredRun) -> Section:
    """Settings that are not the defaults or always asked for, their history, and all others in a folder."""
    if not run.config:
        return Section("Settings")
    names = {*said(run.config), *_ALWAYS}
    chosen = {name: value for name, value in run.config.items() if name in names}
    blocks: list[Block] = [Table(("setting", "value"), _rows(chosen))]
    if run.history:
        rows = [
            (
                value_of(change.get("step")),
                shortened(str(change.get("what"))),
                value_of(change.get("from")),
                value_of(change.get("to")),
                when(change.get("when")),
            )
            for change in run.history[:_MOST]
        ]
        blocks += [Text("Changed while it went on:"), Table(("step", "setting", "from", "to", "when"), rows)]
    others = {name: value for name, value in run.config.items() if name not in chosen}
    if others:
        blocks.append(Folded(f"Defaults ({len(others)})", [Table(("setting", "value"), _rows(others))]))
    return Section("Settings", blocks)


def _rows(settings: dict[str, Any]) -> list[tuple[str, str]]:
    return [(shortened(name), value_of(value)) for name, value in list(settings.items())[:_MOST]]


def environment_section(run: StoredRun) -> Section:
    """Hardware, packages, model, data and commit."""
    rows: list[tuple[str, str]] = []
    for name, value in run.environment.items():
        if name in ("command", "packages", "transformers_trainer"):
            continue
        if isinstance(value, dict):
            rows += [(f"{name}: {key}", value_of(each)) for key, each in list(value.items())[:20] if each]
        elif value is not None:
            rows.append((name, value_of(value)))
    blocks: list[Block] = [Table(("", ""), rows[:60])] if rows else []
    if packages := _packages(run):
        blocks.append(Folded("Packages", [Code("\n".join(packages))]))
    return Section("What it ran on", blocks)


def reproduce_section(run: StoredRun) -> Section:
    """The commands that lead to the same numbers on the same kind of machine."""
    lines = []
    git = run.environment.get("git")
    if isinstance(git, dict) and git.get("commit"):
        lines.append(f"git checkout {shlex.quote(str(git['commit'])[:64])}")
    if packages := _packages(run):
        lines.append(f"pip install {' '.join(shlex.quote(one) for one in packages)}")
    command = run.environment.get("command")
    if isinstance(command, list) and command:
        lines.append(shortened(shlex.join(["python", *map(str, command)]), 4000))
    if not lines:
        return Section("How to do it again")
    seed = run.config.get("seed")
    words = "With the same packages, hardware, data and first weights the numbers come out the same."
    if seed is not None:
        words += f" The seed was {value_of(seed)}; a model that a script makes before its Trainer needs one of its own."
    dirty = isinstance(git, dict) and git.get("dirty")
    if dirty:
        words += " The code had changes that are in no commit."
    return Section("How to do it again", [Text(words), Code(redacted("\n".join(lines)))])


def _packages(run: StoredRun) -> list[str]:
    packages = run.environment.get("packages")
    if not isinstance(packages, dict):
        return []
    # A local build's name ("+cpu") is on no index.
    return [f"{name}=={str(version).split('+')[0]}" for name, version in sorted(packages.items())][:60]
