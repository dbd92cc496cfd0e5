"""No model is loaded with a transformers that runs code from a model's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.experiment.tiny import bert
from trainwright.cli.app import app
from trainwright.config.refused_versions import refuse_unsafe_transformers
from trainwright.recipes.distillation.teacher import resolve_teacher


@pytest.fixture
def old_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What pip would say of an older one; the code is that of today."""

    def install(version: str) -> None:
        about = tmp_path / f"site-{version}" / f"transformers-{version}.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: transformers\nVersion: {version}\n")
        monkeypatch.syspath_prepend(str(about.parent))

    return install


def test_an_experiment_is_refused_in_one_line(tmp_path: Path, old_transformers: Any) -> None:
    (tmp_path / "t.csv").write_text("text,label\n" + "good film,1\nbad film,0\n" * 8)
    (tmp_path / "e.yaml").write_text(
        f"model: {{name: {bert(tmp_path / 'bert')}, task: text-classification}}\n"
        "data: {train: t.csv, holdout: 0.25}\n"
    )
    old_transformers("5.2.0")
    done = CliRunner().invoke(app, ["check", str(tmp_path / "e.yaml")])
    assert done.exit_code == 2
    assert done.output.strip().splitlines()[-1].endswith("(CVE-2026-4372): pip install 'transformers>=5.3'.")


def test_a_teacher_in_a_folder_is_refused(tmp_path: Path, old_transformers: Any) -> None:
    folder = bert(tmp_path / "bert")
    old_transformers("4.57.6")
    with pytest.raises(ValueError, match=r"transformers 4\.57\.6 runs code that a model's files name"):
        resolve_teacher(str(folder), torch.nn.Linear(2, 2))


def test_versions_that_do_not_are_taken(old_transformers: Any) -> None:
    for version in ("5.3.0", "5.22.2", "6.0.0.dev0"):
        old_transformers(version)
        refuse_unsafe_transformers()
