"""Where a run lives, whatever the process's working directory becomes while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainwright.config.fields import AllFields


def run_directory(args: AllFields) -> Path:
    """``output_dir`` as an absolute path: a relative one is meant from where the arguments were made.

    >>> import os
    >>> from trainwright import TrainingArguments
    >>> here, args = Path.cwd(), TrainingArguments("runs/first")
    >>> os.chdir("/")
    >>> run_directory(args) == here / "runs/first"
    True
    >>> os.chdir(here)
    """
    return anchored(args, str(args.output_dir))


def make_run_directory(args: AllFields) -> None:
    """Make the folder that :func:`run_directory` names, or say in a line why it cannot be made."""
    folder = run_directory(args)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "a file has that name" if isinstance(error, (FileExistsError, NotADirectoryError)) else error.strerror
        raise ValueError(
            f"output_dir={str(args.output_dir)!r}: the folder {folder} cannot be made ({why}); choose one that can be "
            "written."
        ) from error


def anchored(args: AllFields, path: str | Path) -> Path:
    """``path`` as an absolute path, meant from where ``args`` were made."""
    made_in = Path(getattr(getattr(args, "_resolution", None), "working_directory", None) or ".")
    # Arguments that came from another machine know a folder that is not here.
    return ((made_in if made_in.is_dir() else Path()) / path).absolute()


def working_directory() -> str | None:
    """The present working directory; None where it was deleted."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return None
