"""What other libraries find underneath: accelerate's state in time, and their own state after a resume."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from trainwright.compat.library_state import state_of, take_up

EARLY = """
from accelerate.logging import get_logger
from trainwright.compat.underneath import Seq2SeqTrainingArguments, TrainingArguments
{kind}("out", use_cpu=True, report_to="none")
get_logger("a library").warning("said before there is a Trainer")
"""


@pytest.mark.parametrize("kind", ["TrainingArguments", "Seq2SeqTrainingArguments"])
def test_accelerates_state_is_there_as_soon_as_the_arguments_are(kind: str, tmp_path: Path) -> None:
    """Libraries log through accelerate before they call the Trainer's constructor."""
    words = [sys.executable, "-c", EARLY.format(kind=kind)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "said before there is a Trainer" in done.stderr


def trainer_of(library: str) -> Any:
    """Keeps numbers until the next log, in a dict that makes what it is asked for."""
    trainer = type("Trainer", (), {"__module__": f"{library}.trainer"})()
    trainer._stored_metrics = defaultdict(lambda: defaultdict(list))
    return trainer


@pytest.mark.parametrize("library", ["trl", "axolotl", "llamafactory"])
def test_numbers_until_the_next_log_are_kept_and_more_may_come(library: str) -> None:
    before, after = trainer_of(library), trainer_of(library)
    before._stored_metrics["train"]["margin"].append(0.5)
    take_up(after, state_of(before, alone=True))
    after._stored_metrics["train"]["margin"].append(1.5)
    after._stored_metrics["train"]["another"].append(2.5)
    assert after._stored_metrics == {"train": {"margin": [0.5, 1.5], "another": [2.5]}}
