"""Asked to stop where nothing was done yet, hanging, or killed: a word, the right exit code, no process left behind.

One case of each kind is in ``test_processes.py``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.forking import outcomes
from tests.faults.leaving import CASES

ROOT = Path(__file__).parents[2]
TERMINAL = "a closed terminal"
#: What a run that hangs could still save: not what the update or the disk holds.
SAVED_WHERE_IT_HANGS = {"hang in the update": [], "hang in a save": []}


def assert_left_well(name: str, found: dict[str, Any], straight: str) -> None:
    # The same command again, without whatever was in the way, ends where a run ends that nothing happened to.
    assert found["end"] == straight or (found["end"] and "fits" in name)
    if name == TERMINAL:
        assert (found["code"], found["saved"]) == (75, ["checkpoint-4"])
        return
    assert found["left"] == []
    assert found["untouched"]
    # Far below the minute for which the run would have stayed where it was.
    assert found["seconds"] < 40
    kinds = [kind for kind, _ in found["events"]]
    if name.startswith("hang"):
        assert found["code"] == 70
        assert found["saved"] == SAVED_WHERE_IT_HANGS.get(name, ["checkpoint-3"])
        assert "stuck" in kinds
    elif name.startswith("killed"):
        assert found["code"] == -signal.SIGKILL
    elif name.startswith("interrupted"):
        assert found["code"] == 130
        assert found["marker"]["code"] == 130
    elif name == "not handled":
        assert found["code"] == -signal.SIGTERM
    else:
        assert found["code"] == 75
        assert kinds[-1] == "stopped"
        # What was asked to stop was no training.
        assert found["marker"] is None if "predict" in name or "evaluate" in name else found["marker"]["code"] == 75
        said = found["events"][-1][1]
        assert "nothing was done yet" in said or "checkpoint-0 holds everything" in said
        if name == "while resuming":
            assert "checkpoint-4 is as it was" in said


@pytest.mark.full
@pytest.mark.parametrize("words", ["while", "three", "in ", "not", "hang", "interrupted", "killed"])
def test_runs_are_left_well_from_everywhere(words: str, folder: Path) -> None:
    answers = outcomes(folder, {"leaving": [name for name in CASES if name.startswith(words)]})["leaving"]
    straight = answers.pop("straight")
    for name, found in answers.items():
        assert_left_well(name, found, straight)


SLOW = """
import pathlib, sys, time
pathlib.Path("here").touch()
assert "torch" not in sys.modules
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_command_answers_before_it_has_loaded_anything(number: int, tmp_path: Path) -> None:
    """Also when it is asked again and again."""
    (tmp_path / "t.csv").write_text("a,kind\n1,x\n2,y\n")
    (tmp_path / "e.yaml").write_text("model: mlp\ndata: {train: t.csv, target: kind}\n")
    (tmp_path / "slow.py").write_text(SLOW)
    process = subprocess.Popen(
        [sys.executable, "-m", "trainwright", "train", "e.yaml", "--import", "slow.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 60
    while not (tmp_path / "here").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    for _ in range(50):
        if process.poll() is None:
            process.send_signal(number)
        time.sleep(0.02)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 75
    assert f"Stopped by {signal.Signals(number).name}: run the same command again to resume." in said
    assert "Traceback" not in said
