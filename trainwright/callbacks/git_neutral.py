"""git without the repository's configuration.

``.git/config`` may name programs (``core.fsmonitor``, filters, hooks) that plain ``git status`` starts, and no switch
turns all of it off. So git is given a folder of ours in place of ``.git``: their objects and index, our configuration.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which

_SMALL = 64 * 1024

#: Settings that say how files are compared, with the values they may have; none of them names a program.
_COMPARING = {
    "core.autocrlf": "true false input",
    "core.checkstat": "default minimal",
    "core.eol": "lf crlf native",
    "core.filemode": "true false",
    "core.ignorecase": "true false",
    "core.precomposeunicode": "true false",
    "core.sparsecheckout": "true false",
    "core.sparsecheckoutcone": "true false",
    "core.symlinks": "true false",
    "core.trustctime": "true false",
}
_ATTRIBUTES, _FORMAT = "core.attributesfile", "extensions.objectformat"
_READ = "^(" + "|".join(re.escape(name) for name in (*_COMPARING, _ATTRIBUTES, _FORMAT)) + ")$"


@dataclass(frozen=True)
class Repository:
    """Where the parts of a repository are."""

    top: Path
    #: ``.git`` itself, or the folder that a worktree or a submodule has instead.
    own: Path
    #: Where objects and branches are: another folder only for a worktree.
    common: Path

    @property
    def has_tables(self) -> bool:
        """Return True when branches are in git's binary tables (``reftable``) and not in files."""
        return (self.common / "reftable").is_dir()


def content(path: Path, limit: int = _SMALL) -> bytes | None:
    """Return what an ordinary file of bounded size holds; None for a FIFO, a device or anything longer."""
    try:
        # Without O_NONBLOCK, opening a FIFO waits for whoever writes to it.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError):
        return None
    with open(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        return file.read(limit) if stat.S_ISREG(about.st_mode) and about.st_size <= limit else None


class NeutralGit:
    """Runs git on a repository's objects, index and files, until a moment of ``time.monotonic``."""

    def __init__(self, repository: Repository, folder: Path, until: float, commit: str | None = None) -> None:
        self._repository, self._folder, self._until = repository, folder, until
        self._program = _program(outside=repository.top)
        for name in ("refs", "info"):
            (folder / name).mkdir(parents=True)
        (folder / "HEAD").write_text(f"{commit or 'ref: refs/heads/.invalid'}\n")
        # They say which files have filters, of which there are none here.
        (folder / "info" / "attributes").write_bytes(content(repository.common / "info" / "attributes") or b"")
        self._options: list[str] = []
        self._configure()
        settings = self._settings()
        self._format = {"objectFormat": "sha256"} if settings.get(_FORMAT) == "sha256" else {}
        self._configure(**self._format)
        compared = {name: value for name in _COMPARING if (value := settings.get(name)) in _COMPARING[name].split()}
        compared[_ATTRIBUTES] = settings.get(_ATTRIBUTES) or str(_user_folder() / "attributes")
        self._options = [word for name, value in compared.items() for word in ("-c", f"{name}={value}")]

    def show_tables(self, source: Path) -> None:
        """Let git see the branches that ``source`` keeps in tables."""
        self._configure(**self._format, refStorage="reftable")
        (self._folder / "reftable").symlink_to((source / "reftable").resolve(), target_is_directory=True)

    def _configure(self, **extensions: str) -> None:
        lines = ["[core]", "bare = false", f"repositoryFormatVersion = {int(bool(extensions))}"]
        lines += [f"hooksPath = {os.devnull}", "fsmonitor = false", "[extensions]"]
        lines += [f"{name} = {value}" for name, value in extensions.items()]
        (self._folder / "config").write_text("\n".join(lines) + "\n")

    def _settings(self) -> dict[str, str]:
        """Return the user's settings, and over them the repository's. Reading them as text starts nothing."""
        theirs = ("--no-includes", "--file", str(self._repository.common / "config"))
        read = ("--null", "--get-regexp", _READ)
        answers = (self.run("config", *read, as_user=True) or b"") + (self.run("config", *theirs, *read) or b"")
        found = {}
        for entry in answers.decode(errors="replace").split("\0"):
            name, equals, value = entry.partition("\n")
            # A key alone means true.
            found[name] = value if equals else "true"
        return found

    def filtered(self, paths: Sequence[bytes]) -> int | None:
        """Return how many of ``paths`` pass through a filter of the repository's choosing; None when unknown."""
        answer = self.run("check-attr", "-z", "--stdin", "filter", given=b"".join(path + b"\0" for path in paths))
        if answer is None:
            return None
        # Triples: path, "filter", value.
        return sum(value not in (b"unspecified", b"unset") for value in answer.split(b"\0")[2::3])

    def run(self, *words: str, given: bytes = b"", as_user: bool = False) -> bytes | None:
        """Return what git prints; None where it fails, takes too long or is not installed."""
        left = self._until - time.monotonic()
        if self._program is None or left <= 0:
            return None
        try:
            done = subprocess.run(
                [self._program, *self._options, *words],
                input=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=self._repository.top,
                env=self._environment(as_user),
                timeout=left,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    def _environment(self, as_user: bool) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        if not as_user:
            # The user's own settings name programs too, which a hostile .gitattributes could choose from.
            kept |= {"HOME": str(self._folder), "XDG_CONFIG_HOME": str(self._folder)}
            kept |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
        return kept | {
            "GIT_DIR": str(self._folder),
            "GIT_WORK_TREE": str(self._repository.top),
            "GIT_OBJECT_DIRECTORY": str(self._repository.common / "objects"),
            "GIT_INDEX_FILE": str(self._repository.own / "index"),
            # Nothing is written, nothing fetched, nobody asked.
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_TERMINAL_PROMPT": "0",
        }


def _user_folder() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()) / "git"


def _program(outside: Path) -> str | None:
    """Return the git of the search path, but none from the repository itself or from wherever we happen to be."""
    for entry in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if os.path.isabs(entry) and not Path(entry).resolve().is_relative_to(outside.resolve()):
            # With a folder in front, nothing else is searched.
            found = which(os.path.join(entry, "git"))
            if found is not None:
                return found
    return None
