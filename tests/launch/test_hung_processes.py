"""Processes that were asked to stop and cannot hear it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainwright.launch.notes import Notes
from trainwright.launch.processes import STOP_SECONDS, _kill_later, stop_seconds

_DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"


def test_they_are_killed_in_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", _DEAF], stdout=subprocess.PIPE) as deaf:
        assert deaf.stdout is not None
        deaf.stdout.readline()
        (tmp_path / "process-0.json").write_text(json.dumps({"pid": deaf.pid}))
        deaf.terminate()
        _kill_later(Notes(tmp_path), 0.1)
        assert deaf.wait(10) == -signal.SIGKILL
    time.sleep(0.01)
    assert STOP_SECONDS in capsys.readouterr().err


def test_how_long_they_may_take_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stop_seconds() == 1800
    monkeypatch.setenv(STOP_SECONDS, "20")
    assert stop_seconds() == 20
    for wrong in ("soon", "0", "-1", "nan"):
        monkeypatch.setenv(STOP_SECONDS, wrong)
        with pytest.raises(ValueError, match=STOP_SECONDS):
            stop_seconds()


_LAUNCHED = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(sys.argv[1]).touch()
time.sleep(600)
"""


@pytest.mark.full
def test_a_launch_of_them_ends(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_LAUNCHED)
    command = [sys.executable, "-m", "trainwright.compat.accmt", "launch", "--cpu", "-N", "2"]
    words = [*command, str(tmp_path / "script.py"), str(tmp_path / "ready")]
    with subprocess.Popen(["env", f"{STOP_SECONDS}=2", *words], stderr=subprocess.PIPE, text=True) as launch:
        while not (tmp_path / "ready").exists():
            time.sleep(0.2)
        launch.terminate()
        _, said = launch.communicate(timeout=60)
    assert launch.returncode == 128 + signal.SIGKILL
    assert "they are killed" in said
