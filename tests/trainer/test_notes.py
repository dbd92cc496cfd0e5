"""Notes reach a person whose script set up no logging, and stay out of the way of one that did."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import logging, sys
{setup}
from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainingArguments
rows = [dict(row, comment="never used") for row in classification_rows(8)]
args = TrainingArguments({folder!r}, max_steps=1, save_strategy="no", use_cpu=True, disable_tqdm=True {more})
Trainer(Plain().float(), args, train_dataset=rows).train()
"""


@pytest.mark.parametrize(
    ("setup", "more", "shown"),
    [
        ("", "", True),
        pytest.param("", ", log_level='error'", False, marks=pytest.mark.full),
        pytest.param("logging.basicConfig(level=logging.WARNING)", "", False, marks=pytest.mark.full),
        ("logging.basicConfig(level=logging.INFO)", "", True),
    ],
)
def test_dropped_columns_are_said(tmp_path: Path, setup: str, more: str, shown: bool) -> None:
    script = SCRIPT.format(setup=setup, folder=str(tmp_path / "run"), more=more)
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(__file__).parents[2], check=True
    )
    assert result.stderr.count("comment") == int(shown), result.stderr
