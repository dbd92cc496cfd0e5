"""Commands in a folder that somebody else filled: without --trust nothing in it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: Modules that Python or our commands import; a file of that name in the folder must not take their place.
SHADOWED = ("torch", "json", "dataclasses", "logging", "typer", "multiprocessing", "signal", "numpy")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for module in SHADOWED:
        (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'a').write('{module} ')\n")
    (tmp_path / "mistaken.yaml").write_text("task: no-such-task\n")
    return tmp_path


def trainwright(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("trainwright")
    return subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_launch_imports_nothing_from_the_folder(folder: Path) -> None:
    done = trainwright(folder, "launch", "mistaken.yaml")
    assert done.returncode == 2, done.stderr
    assert "mistaken.yaml:1" in done.stderr
    assert not (folder / "canary").exists()


@pytest.mark.slow
def test_a_folder_that_looks_like_a_package_offers_nothing(tmp_path: Path) -> None:
    facts = tmp_path / "planted-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[trainwright.optimizers]\nplanted = planted:Adam\n")
    (tmp_path / "planted.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'a')\n")
    (tmp_path / "e.yaml").write_text("model: mlp\ndata: digits\ntraining: {optim: planted}\n")
    done = trainwright(tmp_path, "check", "e.yaml")
    assert done.returncode == 2, done.stderr
    assert "optim: there is no optimizer 'planted'" in done.stderr
    assert not (tmp_path / "canary").exists()


@pytest.mark.full
@pytest.mark.parametrize(
    "command",
    [
        "train digits.yaml training.max_steps=1 training.dataloader_num_workers=1 "
        "training.dataloader_multiprocessing_context=spawn",
        "launch --nproc 2 digits.yaml training.max_steps=1",
        "launch --nproc auto --cpu digits.yaml training.max_steps=1",
        "launch --nproc auto digits.yaml training.max_steps=1",
        "demo --kill",
    ],
)
def test_no_process_of_a_run_imports_anything_from_the_folder(folder: Path, command: str) -> None:
    assert trainwright(folder, "cp", "digits", ".").returncode == 0
    done = trainwright(folder, *command.split())
    assert done.returncode == 0, done.stderr
    assert not (folder / "canary").exists()
