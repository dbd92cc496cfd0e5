"""Commit, branch and dirtiness of the repository around the working directory, without running what it configures."""

from __future__ import annotations

import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from trainwright.callbacks.git_neutral import NeutralGit, Repository, content

#: Seconds for everything that is found out about a repository and its submodules.
_SECONDS = 5.0
#: Submodules in submodules: a hostile one may be its own.
_DEPTH = 8
#: Links from one ref to the next, as in git.
_LINKS = 5
_PACKED_REFS_BYTES = 64 * 1024 * 1024
_COMMIT = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(rb"refs/(?:(?!\.\.|//)[^\x00-\x20\x7f~^:?*\[\\])+")


def git_facts() -> dict[str, Any] | None:
    """Return commit, branch ("HEAD" when detached) and whether tracked files differ from the commit.

    None outside a repository and before its first commit. A single fact is None where it cannot be known: without
    running what the repository configures (a filter such as Git LFS on a file that was touched), where git is not
    installed, or within seconds.
    """
    until = time.monotonic() + _SECONDS
    try:
        here = Path.cwd()
        repository = next((found for folder in (here, *here.parents) if (found := _repository_at(folder))), None)
        if repository is None:
            return None
        commit, branch = _head(repository, until)
        if commit is None and branch is not None:
            return None
        dirty = None if commit is None else _is_dirty(repository, commit, until)
    except OSError:
        return None
    return {"commit": commit, "branch": branch, "dirty": dirty}


def _repository_at(folder: Path) -> Repository | None:
    own = folder / ".git"
    if not own.is_dir():
        pointer = content(own) or b""
        if not pointer.startswith(b"gitdir:"):
            return None
        own = folder / os.fsdecode(pointer.removeprefix(b"gitdir:").strip())
    if content(own / "HEAD") is None:
        return None
    shared = content(own / "commondir")
    return Repository(folder, own, own if shared is None else own / os.fsdecode(shared.strip()))


def _head(repository: Repository, until: float) -> tuple[str | None, str | None]:
    """Return commit and branch; a branch alone before the first commit, neither where they cannot be known."""
    if repository.has_tables:
        return _head_in_tables(repository, until)
    name, value = b"HEAD", content(repository.own / "HEAD") or b""
    for _ in range(_LINKS):
        if not value.startswith(b"ref:"):
            break
        name = value.removeprefix(b"ref:").strip()
        if not _REF.fullmatch(name):
            return None, None
        value = _ref_value(repository.common, name)
        if value is None:
            return None, None
    commit = _commit(value)
    return (None, None) if value and commit is None else (commit, _branch(name))


def _ref_value(common: Path, name: bytes) -> bytes | None:
    """Return what a ref holds, nothing where there is no such ref, None where it cannot be read."""
    file, packed = common / os.fsdecode(name), common / "packed-refs"
    if file.is_file():
        return content(file)
    if not packed.exists():
        return b""
    text = content(packed, _PACKED_REFS_BYTES)
    if text is None:
        return None
    end = text.find(b" " + name + b"\n")
    return text[text.rfind(b"\n", 0, end) + 1 : end] if end > 0 else b""


def _commit(value: bytes) -> str | None:
    return value.strip().decode() if _COMMIT.fullmatch(value.strip()) else None


def _branch(ref: bytes) -> str:
    return ref.removeprefix(b"refs/heads/").decode(errors="replace")


def _head_in_tables(repository: Repository, until: float) -> tuple[str | None, str | None]:
    """Return the same where git keeps branches in binary tables, which git reads for us."""
    with tempfile.TemporaryDirectory(prefix="trainwright-git-") as folder:
        git = NeutralGit(repository, Path(folder) / "own", until)
        git.show_tables(repository.own)
        name = (git.run("symbolic-ref", "--quiet", "HEAD") or b"HEAD").strip()
        if name != b"HEAD":
            # Branches are common to all worktrees.
            git = NeutralGit(repository, Path(folder) / "common", until)
            git.show_tables(repository.common)
        commit = _commit(git.run("rev-parse", "--verify", "--quiet", os.fsdecode(name)) or b"")
    return (None, None) if commit is None else (commit, _branch(name))


def _is_dirty(repository: Repository, commit: str, until: float, depth: int = _DEPTH) -> bool | None:
    """Return True when tracked files differ from the commit, None when that cannot be known."""
    with tempfile.TemporaryDirectory(prefix="trainwright-git-") as folder:
        git = NeutralGit(repository, Path(folder) / "git", until, commit)
        options = ("--untracked-files=no", "--no-renames", "--ignore-submodules=dirty")
        status = git.run("status", "--porcelain=v1", "-z", *options)
        entries = git.run("ls-files", "--stage", "-z")
        if status is None or entries is None:
            return None
        changes = [line for line in status.split(b"\0") if line]
        # What only looks modified in the working tree may be what a filter makes of an unchanged file.
        modified = [line[3:] for line in changes if line.startswith(b" M")]
        filtered = git.filtered(modified)
    if len(modified) < len(changes) or (filtered is not None and filtered < len(modified)):
        return True
    inside = _is_a_submodule_dirty(repository, entries, until, depth)
    return None if modified and not inside else inside


def _is_a_submodule_dirty(repository: Repository, entries: bytes, until: float, depth: int) -> bool | None:
    answers: set[bool | None] = {False}
    for entry in entries.split(b"\0"):
        about, _, path = entry.partition(b"\t")
        inner = _repository_at(repository.top / os.fsdecode(path)) if about.startswith(b"160000 ") else None
        if inner is not None:
            commit = _head(inner, until)[0] if depth and time.monotonic() < until else None
            answers.add(None if commit is None else _is_dirty(inner, commit, until, depth - 1))
    return True if True in answers else None if None in answers else False
