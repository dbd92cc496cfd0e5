"""What the demos share: their options, their run directory and the block they end with."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from trainwright.checkpoint.directory import list_checkpoints

_MARK = "demo.json"


class DemoError(Exception):
    """Something the person running a demo can put right; the message says how."""


class DemoUsageError(DemoError):
    """The options contradict each other or the run directory."""


@dataclass(frozen=True)
class DemoOptions:
    """What ``trainwright demo`` was asked for; None takes the demo's own choice, or on resume the run's."""

    output: Path
    epochs: int | None = None
    batch_size: int | None = None
    seed: int | None = None
    resume: bool = False
    #: The commands to show at the end: what this program is called here, and what resumes this run.
    program: str = "trainwright"
    resume_command: str = "trainwright demo --resume"


@dataclass(frozen=True)
class DemoRun:
    """The settled numbers of one demo run; stored beside its checkpoints, so that a resume needs no options."""

    demo: str
    epochs: int
    batch_size: int
    seed: int


def settle(options: DemoOptions, defaults: DemoRun) -> DemoRun:
    """Options over defaults or, on resume, over what the interrupted run had; prepares the directory."""
    stored = _stored_run(options.output)
    if stored is not None and stored.demo != defaults.demo:
        raise DemoUsageError(f"{options.output} belongs to the demo {stored.demo!r}: choose another --output.")
    if options.resume:
        return _resumed(options, stored)
    if list(options.output.glob("checkpoint-*")):
        _clear(options.output, is_ours=stored is not None)
    run = DemoRun(
        defaults.demo,
        _first_given(options.epochs, defaults.epochs),
        _first_given(options.batch_size, defaults.batch_size),
        _first_given(options.seed, defaults.seed),
    )
    _store(options.output, run)
    return run


def _first_given(asked: int | None, otherwise: int) -> int:
    return otherwise if asked is None else asked


def _resumed(options: DemoOptions, stored: DemoRun | None) -> DemoRun:
    if stored is None or not list_checkpoints(options.output):
        raise DemoUsageError(f"There is nothing to resume in {options.output}: leave out --resume to start.")
    for name in ("batch_size", "seed"):
        asked = getattr(options, name)
        if asked is not None and asked != getattr(stored, name):
            option = f"--{name.replace('_', '-')}"
            raise DemoUsageError(f"A resumed run keeps its {option} {getattr(stored, name)}: leave the option out.")
    run = DemoRun(stored.demo, _first_given(options.epochs, stored.epochs), stored.batch_size, stored.seed)
    _store(options.output, run)
    return run


def _clear(output: Path, *, is_ours: bool) -> None:
    """Let the checkpoints of the demo's last run go: a later resume must not find them."""
    if not is_ours:
        raise DemoUsageError(f"{output} holds checkpoints of another run: choose another --output.")
    print(f"Starting anew: the checkpoints of the last run in {output} are replaced.", flush=True)
    for checkpoint in list_checkpoints(output):
        shutil.rmtree(checkpoint)


def _stored_run(output: Path) -> DemoRun | None:
    try:
        return DemoRun(**json.loads((output / _MARK).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise DemoUsageError(f"{output / _MARK} cannot be read ({error}): choose another --output.") from error


def _store(output: Path, run: DemoRun) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
        (output / _MARK).write_text(json.dumps(asdict(run)) + "\n", encoding="utf-8")
    except OSError as error:
        raise DemoUsageError(f"Cannot write to {output} ({error.strerror}): choose another --output.") from error


def trackers() -> list[str]:
    """TensorBoard where it is installed."""
    return ["tensorboard"] if importlib.util.find_spec("tensorboard") is not None else []


def closing_block(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """The last thing a demo shows: a panel on a terminal, plain lines anywhere else."""
    if not sys.stdout.isatty():
        print(f"\n{title}")
        width = max(11, *(len(name) for name, _ in rows))
        for name, value in rows:
            print(f"  {name:<{width}} {value}")
        sys.stdout.flush()
        return
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        # Folding, never cutting: a command that lost its end is of no use.
        table.add_row(Text(name, style="bold"), Text(value, overflow="fold"))
    Console().print(Panel(table, title=title, title_align="left", border_style="green", expand=False))
