"""The command line from outside: what it prints, what it imports, how it ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainwright.cli.app import Demo, app, program, resume_command
from trainwright.version import __version__

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "trainwright"]


def call(*words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["demo", "--help"], ["--version"]])
def test_help_and_version_answer_without_torch(words: list[str]) -> None:
    script = (
        "import sys; from trainwright.cli import main\n"
        f"sys.argv = ['trainwright', *{words!r}]\n"
        "try: main()\n"
        "except SystemExit as end: code = end.code\n"
        "heavy = [m for m in ('torch', 'transformers', 'numpy', 'sklearn', 'accelerate') if m in sys.modules]\n"
        "assert not heavy, heavy\n"
        "assert not code, code\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_version() -> None:
    done = call("--version")
    assert (done.returncode, done.stdout) == (0, f"trainwright {__version__}\n")


@pytest.mark.parametrize(
    "words",
    [
        ["demo", "nonsense"],
        ["demo", "--epochs", "0"],
        ["demo", "--batch-size", "-1"],
        ["demo", "--no-such-option"],
        ["no-such-command"],
    ],
)
def test_bad_usage_exits_with_2(words: list[str]) -> None:
    assert CliRunner().invoke(app, words).exit_code == 2


def test_env_prints_json() -> None:
    done = CliRunner().invoke(app, ["env"])
    assert done.exit_code == 0
    assert "torch" in json.loads(done.stdout)["packages"]


def test_the_resume_command_is_one_that_works_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "bin" / "trainwright"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)
    assert program() == ["bin/trainwright"]
    monkeypatch.setenv("PATH", str(script.parent))
    assert resume_command(Demo.digits, None) == "trainwright demo digits --resume"
    assert resume_command(Demo.lm, Path("a b")) == "trainwright demo lm --resume --output 'a b'"
    monkeypatch.setattr(sys, "argv", ["/x/trainwright/__main__.py"])
    assert program() == [sys.executable, "-m", "trainwright"]


@pytest.mark.slow
def test_an_interrupted_demo_says_how_to_go_on_and_that_works(tmp_path: Path) -> None:
    output = tmp_path / "run"
    words = [*COMMAND, "demo", "--epochs", "200", "--output", str(output)]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(output.glob("checkpoint-*/trainer_state.json")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in errors
    first, line = errors.splitlines()
    assert "Stopped by SIGINT" in first
    found = re.fullmatch(r"Interrupted; checkpoint-(\d+) is safe\. Resume with: (.*)", line)
    assert found is not None, errors
    step, command = int(found[1]), shlex.split(found[2])
    epochs = step // 45 + 1
    done = subprocess.run(
        [*command, "--epochs", str(epochs)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"from step {step}" in done.stdout


def test_python_m_runs_nothing_that_lies_in_the_current_folder(tmp_path: Path) -> None:
    for name in ("yaml", "typer", "pydantic", "rich"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('it ran')\n")
    done = subprocess.run(
        [sys.executable, "-m", "trainwright", "ls"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "digits" in done.stdout) == (0, True), done.stdout + done.stderr
