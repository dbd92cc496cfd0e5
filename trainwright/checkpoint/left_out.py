"""Parts of a checkpoint that could not be added: named, and no reason to lose the rest."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from trainwright.checkpoint.durable import discard

T = TypeVar("T")
#: Files that a checkpoint has besides those of models, tokenizers and processors.
OUR_NAMES = frozenset(
    {"manifest.json", "model.safetensors", "optimizer.safetensors", "random.safetensors", "callbacks.safetensors"}
    | {"training_state.json", "trainer_state.json", "log.json"}
)


@dataclass
class LeftOut:
    """Collects, for one checkpoint, what code that is not ours failed to add.

    >>> left_out = LeftOut()
    >>> left_out.attempt("the tokenizer", lambda: 1 / 0, otherwise=None)
    >>> left_out.reasons
    ['the tokenizer (ZeroDivisionError: division by zero)']
    """

    reasons: list[str] = field(default_factory=list)

    def attempt(self, what: str, work: Callable[[], T], otherwise: T) -> T:
        """Return what ``work`` returns, or ``otherwise`` if it raises; then ``what`` is noted with the reason."""
        try:
            return work()
        except Exception as error:
            self.note(what, error)
            return otherwise

    def add_files(self, what: str, folder: Path, write: Callable[[], object]) -> bool:
        """Let ``write`` put files into ``folder``; if it raises, the half of them that is there goes again.

        So they do if one of them has a name that a checkpoint needs for itself.
        """
        before = set(folder.rglob("*"))
        try:
            write()
            if taken := sorted(set(os.listdir(folder)) & OUR_NAMES - {path.name for path in before}):
                raise ValueError(f"it wrote {taken[0]}, a name that a checkpoint needs for itself")
        except Exception as error:
            for path in sorted(set(folder.rglob("*")) - before, reverse=True):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
            self.note(what, error)
            return False
        return True

    def note(self, what: str, error: BaseException | str) -> None:
        reason = error if isinstance(error, str) else in_words(error)
        if (text := f"{what} ({reason})") not in self.reasons:
            self.reasons.append(text)


def clear_the_way(folder: Path) -> None:
    """Take away links, pipes and folders under the names that a checkpoint is about to write."""
    for path in (folder / name for name in OUR_NAMES):
        if path.is_dir() and not path.is_symlink():
            discard(path)
        elif os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
            path.unlink()


def in_words(error: BaseException) -> str:
    """An error in a few words, on one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}, {error.filename}" if error.filename else str(error.strerror)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
