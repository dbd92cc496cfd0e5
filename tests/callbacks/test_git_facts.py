"""What is recorded of a repository, and that recording it runs nothing that the repository names."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainwright.callbacks.git_facts import git_facts

SETTINGS = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
SETTINGS += ["-c", "protocol.file.allow=always", "-c", "advice.detachedHead=false"]


def git(folder: Path, *words: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", *SETTINGS, *words], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit_all(folder: Path) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-m", "one")
    return git(folder, "rev-parse", "HEAD")


def make_repository(folder: Path, *options: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-b", "trunk", *options)
    (folder / "a.txt").write_text("one")
    (folder / "sub").mkdir()
    (folder / "sub" / "b.txt").write_text("two")
    commit_all(folder)
    return folder


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = make_repository(tmp_path / "repository")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """A file that every hostile setting writes to; afterwards it is not there."""
    path = tmp_path / "canary"
    yield path
    assert not path.exists(), f"executed: {path.read_text()}"


def touch_unchanged(path: Path) -> None:
    """Give a file another time and the same content: git must read it to know."""
    about = path.stat()
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns + 10**9))


def script(path: Path, canary: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {path.name} >> {shlex.quote(str(canary))}\nexec cat\n")
    path.chmod(0o755)
    return str(path)


HOSTILE = {
    "core.fsmonitor": "core.fsmonitor",
    "core.hooksPath": "core.hooksPath",
    "core.sshCommand": "core.sshCommand",
    "core.pager": "core.pager",
    "core.editor": "core.editor",
    "core.askPass": "core.askPass",
    "core.gitProxy": "core.gitProxy",
    "credential.helper": "credential.helper",
    "diff.external": "diff.external",
    "diff.evil.textconv": "diff.evil.textconv",
    "diff.evil.command": "diff.evil.command",
    "filter.evil.clean": "filter.evil.clean",
    "filter.evil.smudge": "filter.evil.smudge",
    "filter.evil.process": "filter.evil.process",
    "gpg.program": "gpg.program",
    "uploadpack.packObjectsHook": "uploadpack.packObjectsHook",
}


@pytest.mark.parametrize("key", HOSTILE)
def test_no_program_of_the_repositorys_configuration_runs(key: str, repository: Path, canary: Path) -> None:
    (repository / ".gitattributes").write_text("* filter=evil diff=evil\n")
    commit = commit_all(repository)
    program = script(repository / "evil" / "program", canary)
    for hook in ("post-index-change", "pre-commit", "post-checkout", "fsmonitor-watchman", "query-watchman"):
        script(repository / ".git" / "hooks" / hook, canary)
        script(repository / "evil" / hook, canary)
    git(repository, "config", key, str(repository / "evil") if key == "core.hooksPath" else program)
    git(repository, "config", "filter.evil.required", "true")
    touch_unchanged(repository / "a.txt")
    canary.unlink(missing_ok=True)
    facts = git_facts()
    assert facts is not None
    assert facts["commit"] == commit
    # A filter could make anything of the touched file, and is not asked.
    assert facts["dirty"] is not True


def test_all_of_it_at_once_included_from_another_file_and_under_other_names(repository: Path, canary: Path) -> None:
    program = script(repository / "evil" / "program", canary)
    lines = ["[core]", f"fsmonitor = {program}", f"pager = {program}", f"hooksPath = {repository / 'evil'}"]
    lines += ["[alias]", *(f"{word} = !{program}" for word in ("status", "config", "ls-files", "check-attr"))]
    lines += ['[filter "any name"]', f"clean = {program}", f"process = {program}"]
    lines += ["[extensions]", "worktreeConfig = true", "partialClone = origin"]
    lines += ['[remote "origin"]', f"url = ext::{program}", "promisor = true", f"uploadpack = {program}"]
    (repository / "evil" / "config").write_text("\n".join(lines))
    (repository / ".git" / "config.worktree").write_text("\n".join(lines[:4]))
    (repository / ".git" / "info").mkdir(exist_ok=True)
    (repository / ".git" / "info" / "attributes").write_text('* filter="any name"\n')
    with (repository / ".git" / "config").open("a") as file:
        file.write(f"[include]\npath = {repository / 'evil' / 'config'}\n[extensions]\nworktreeConfig = true\n")
    touch_unchanged(repository / "a.txt")
    facts = git_facts()
    assert facts is not None
    assert facts["branch"] == "trunk"


def test_settings_in_the_environment_run_nothing(
    repository: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = script(repository / "evil" / "program", canary)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", program)
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", f"'core.fsmonitor'='{program}'")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", program)
    monkeypatch.setenv("GIT_SSH_COMMAND", program)
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    facts = git_facts()
    assert facts is not None
    assert facts["dirty"] is False


@pytest.mark.parametrize("entry", ["", ".", "bin", "{repository}", "{repository}/bin"])
def test_a_program_called_git_in_the_folder_is_not_taken_for_git(
    entry: str, repository: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(repository / "git", canary)
    script(repository / "bin" / "git", canary)
    monkeypatch.setenv("PATH", entry.format(repository=repository) + os.pathsep + os.environ["PATH"])
    facts = git_facts()
    assert facts is not None
    assert facts["dirty"] is False


def test_a_submodules_configuration_runs_nothing(repository: Path, tmp_path: Path, canary: Path) -> None:
    inner = make_repository(tmp_path / "inner")
    git(repository, "submodule", "add", str(inner), "module")
    commit_all(repository)
    program = script(tmp_path / "program", canary)
    git(repository / "module", "config", "core.fsmonitor", program)
    git(repository / "module", "config", "filter.evil.clean", program)
    (repository / ".git" / "modules" / "module" / "info" / "attributes").write_text("* filter=evil\n")
    touch_unchanged(repository / "module" / "a.txt")
    facts = git_facts()
    assert facts is not None
    # Byte for byte what was committed.
    assert facts["dirty"] is False


@pytest.mark.slow
def test_a_run_starts_no_program_but_git(repository: Path, tmp_path: Path) -> None:
    """Nor does it look for one in the folder it runs in: every program has an absolute path."""
    code = (
        "import sys, os\n"
        "from trainwright.callbacks.environment import environment_facts\n"
        "import torch\n"
        "started = []\n"
        "sys.addaudithook(lambda event, about: started.append(about[0]) if event == 'subprocess.Popen' else None)\n"
        "facts = environment_facts()\n"
        "print(facts['git']['dirty'], {(os.path.basename(p), os.path.isabs(p)) for p in map(os.fsdecode, started)})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=repository)
    assert done.stdout.strip() == "False {('git', True)}", done.stderr


# Ordinary repositories.


def expect(branch: str, dirty: bool | None, folder: Path) -> None:
    assert git_facts() == {"commit": git(folder, "rev-parse", "HEAD"), "branch": branch, "dirty": dirty}


def test_outside_of_a_repository_there_are_no_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert git_facts() is None
    git(tmp_path, "init", "-b", "trunk")
    assert git_facts() is None, "before the first commit"


def _edit(folder: Path) -> None:
    (folder / "a.txt").write_text("another")


def _delete(folder: Path) -> None:
    (folder / "a.txt").unlink()


def _stage(folder: Path) -> None:
    _edit(folder)
    git(folder, "add", "-A")


def _stage_and_undo(folder: Path) -> None:
    _stage(folder)
    (folder / "a.txt").write_text("one")


def _add(folder: Path) -> None:
    (folder / "new.txt").write_text("new")
    git(folder, "add", "-A")


def _make_executable(folder: Path) -> None:
    (folder / "a.txt").chmod(0o755)


def _make_a_fifo(folder: Path) -> None:
    _delete(folder)
    os.mkfifo(folder / "a.txt")


@pytest.mark.parametrize("change", [_edit, _delete, _stage, _stage_and_undo, _add, _make_executable, _make_a_fifo])
def test_a_change_makes_it_dirty(change: Callable[[Path], None], repository: Path) -> None:
    expect("trunk", False, repository)
    change(repository)
    expect("trunk", True, repository)


def _leave_untracked(folder: Path) -> None:
    (folder / "untracked.txt").write_text("x")


def _touch(folder: Path) -> None:
    touch_unchanged(folder / "a.txt")


def _ignore_modes(folder: Path) -> None:
    git(folder, "config", "core.filemode", "false")
    _make_executable(folder)


def _convert_line_ends(folder: Path) -> None:
    git(folder, "config", "core.autocrlf", "true")
    (folder / "lines.txt").write_bytes(b"x\r\ny\r\n")
    commit_all(folder)
    touch_unchanged(folder / "lines.txt")


def _pack_refs(folder: Path) -> None:
    git(folder, "pack-refs", "--all")
    git(folder, "gc", "--quiet")


def _pass_through_a_filter(folder: Path) -> None:
    git(folder, "config", "filter.upper.clean", "tr a-z A-Z")
    (folder / ".gitattributes").write_text("*.up filter=upper\n")
    (folder / "x.up").write_text("words")
    commit_all(folder)


@pytest.mark.parametrize(
    "change", [_leave_untracked, _touch, _ignore_modes, _convert_line_ends, _pack_refs, _pass_through_a_filter]
)
def test_what_is_no_change_leaves_it_clean(change: Callable[[Path], None], repository: Path) -> None:
    change(repository)
    # Files as old as the index are read again, filter and all.
    touch_unchanged(repository / ".git" / "index")
    expect("trunk", False, repository)


def test_a_touched_file_with_a_filter_is_unknown_and_another_change_is_not(repository: Path) -> None:
    _pass_through_a_filter(repository)
    touch_unchanged(repository / "x.up")
    expect("trunk", None, repository)
    _edit(repository)
    expect("trunk", True, repository)


def test_a_detached_head_has_a_commit_and_no_branch(repository: Path) -> None:
    git(repository, "checkout", "--detach")
    expect("HEAD", False, repository)


def test_a_folder_below(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository / "sub")
    _edit(repository)
    expect("trunk", True, repository)


def test_a_branch_with_slashes_and_other_scripts(repository: Path) -> None:
    git(repository, "checkout", "-b", "me/größe-1.2")
    expect("me/größe-1.2", False, repository)


def test_a_worktree_has_its_own_branch_and_files(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(repository, "worktree", "add", "-b", "side", "../side")
    side = repository.parent / "side"
    _edit(repository)
    monkeypatch.chdir(side)
    expect("side", False, side)
    _edit(side)
    expect("side", True, side)


def test_a_repository_with_sha256(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_repository(tmp_path / "long", "--object-format=sha256")
    monkeypatch.chdir(folder)
    expect("trunk", False, folder)
    assert len(git(folder, "rev-parse", "HEAD")) == 64
    _edit(folder)
    expect("trunk", True, folder)


@pytest.mark.slow
def test_submodules_count_by_commit_and_by_files(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = make_repository(tmp_path / "inner")
    git(repository, "submodule", "add", str(inner), "module")
    commit_all(repository)
    expect("trunk", False, repository)
    _edit(repository / "module")
    expect("trunk", True, repository)
    commit_all(repository / "module")
    expect("trunk", True, repository)
    commit_all(repository)
    expect("trunk", False, repository)
    monkeypatch.chdir(repository / "module")
    expect("trunk", False, repository / "module")


def test_without_git_the_commit_is_known_and_the_rest_is_not(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_facts() == {"commit": commit, "branch": "trunk", "dirty": None}


# Damaged and hostile ones end, and soon.


def _fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _head_that_waits(folder: Path) -> None:
    _fifo(folder / ".git" / "HEAD")


def _branch_that_waits(folder: Path) -> None:
    _fifo(folder / ".git" / "refs" / "heads" / "trunk")


def _index_that_waits(folder: Path) -> None:
    _fifo(folder / ".git" / "index")


def _config_that_waits(folder: Path) -> None:
    _fifo(folder / ".git" / "config")


def _refs_in_a_circle(folder: Path) -> None:
    (folder / ".git" / "refs" / "heads" / "trunk").write_text("ref: refs/heads/trunk\n")


def _ref_outside(folder: Path) -> None:
    (folder / ".git" / "HEAD").write_text("ref: refs/../../secret\n")
    (folder / "secret").write_text("a" * 40)


def _gigabyte_of_refs(folder: Path) -> None:
    git(folder, "pack-refs", "--all")
    with (folder / ".git" / "packed-refs").open("r+b") as file:
        file.truncate(2**30)


def _damaged_index(folder: Path) -> None:
    (folder / ".git" / "index").write_bytes(b"DIRC" + b"\xff" * 200)


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "harm",
    [
        _head_that_waits,
        _branch_that_waits,
        _index_that_waits,
        _config_that_waits,
        _refs_in_a_circle,
        _ref_outside,
        _gigabyte_of_refs,
        _damaged_index,
    ],
)
def test_a_damaged_repository_gives_no_guess(
    harm: Callable[[Path], None], repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainwright.callbacks.git_facts._SECONDS", 0.5)
    commit = git(repository, "rev-parse", "HEAD")
    harm(repository)
    facts = git_facts() or {"commit": None, "branch": None, "dirty": None}
    assert facts["commit"] in (commit, None)
    assert facts["dirty"] is None


def test_a_submodule_that_is_its_own_ends(repository: Path, tmp_path: Path) -> None:
    inner = make_repository(tmp_path / "inner")
    git(repository, "submodule", "add", str(inner), "module")
    commit_all(repository)
    (repository / "module" / ".git").write_text(f"gitdir: {repository / '.git'}\n")
    facts = git_facts()
    assert facts is not None
    assert facts["dirty"] is True


def test_branches_in_tables_are_read_by_a_git_that_can_and_unknown_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tables"
    try:
        make_repository(folder, "--ref-format=reftable")
        git(folder, "worktree", "add", "-b", "side", "../side")
    except subprocess.CalledProcessError:
        # What such a repository looks like to a git before 2.45.
        make_repository(folder)
        (folder / ".git" / "reftable").mkdir()
        (folder / ".git" / "HEAD").write_text("ref: refs/heads/.invalid\n")
        monkeypatch.chdir(folder)
        assert git_facts() == {"commit": None, "branch": None, "dirty": None}
        return
    monkeypatch.chdir(folder)
    expect("trunk", False, folder)
    monkeypatch.chdir(tmp_path / "side")
    expect("side", False, tmp_path / "side")
    _edit(tmp_path / "side")
    expect("side", True, tmp_path / "side")
    git(tmp_path / "side", "checkout", "--detach")
    expect("HEAD", True, tmp_path / "side")
