"""``trainwright launch --on slurm``: the script it writes, run for real. Only Slurm's own commands are stood in for."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trainwright.cli.app import app

ROOT = Path(__file__).parents[2]
SCRIPT = str(Path(__file__).with_name("launched.py"))

#: Runs the command once for each node, all on this machine, hands signals on, and ends with the largest exit code.
SRUN = f"""#!{sys.executable}
import os, signal, subprocess, sys
words = sys.argv[1:]
while words[0].startswith("--"):
    words = words[1:]
nodes = int(os.environ["SLURM_NNODES"])
started = [subprocess.Popen(words, env={{**os.environ, "SLURM_NODEID": str(n)}}) for n in range(nodes)]
signal.signal(signal.SIGUSR1, lambda number, frame: [child.send_signal(number) for child in started])
open(os.environ["STAND_IN"] + "/srun", "w").write(str(os.getpid()))
sys.exit(max(child.wait() for child in started))
"""
SCONTROL = """#!/bin/bash
if [ "$1" = show ]; then echo localhost; echo localhost; else echo "$@" >> "$STAND_IN/scontrol"; fi
"""
SBATCH = """#!/bin/bash
cp "$1" "$STAND_IN/submitted" && echo "Submitted batch job 7"
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for Slurm's commands, first on the PATH; returns the folder in which they note what they did."""
    folder, noted = tmp_path / "slurm", tmp_path / "noted"
    folder.mkdir()
    noted.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("sbatch", SBATCH)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN", str(noted))
    return noted


def written(*words: str) -> str:
    done = CliRunner().invoke(app, ["launch", "--on", "slurm", *words])
    assert done.exit_code == 0, done.output
    return done.output


def check_shell(script: Path) -> None:
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    checker = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")
    if checker is not None:
        command = [checker, "--severity=warning", str(script)]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stdout


def test_options_become_directives_and_sbatch_gets_the_script(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "it's mine.yaml").write_text("")
    output = written(
        *("--nnodes", "4", "--nproc", "8", "--time", "1-00:00:00", "--partition", "gpu", "--account", "lab"),
        *("--sbatch", "mem=64G", "--sbatch", "exclusive", "it's mine.yaml", "training.run_name=a 'b' $c"),
    )
    assert "Submitted batch job 7" in output
    script = tmp_path / "it's mine.sbatch"
    text = script.read_text()
    assert text == (slurm / "submitted").read_text()
    for line in (
        *("job-name=it_s_mine", "nodes=4", "ntasks-per-node=1", "gpus-per-node=8", "time=1-00:00:00", "partition=gpu"),
        *("account=lab", "requeue", "open-mode=append", "signal=USR1@120", "mem=64G", "exclusive"),
    ):
        assert f"#SBATCH --{line}\n" in text
    check_shell(script)
    monkeypatch.setenv("PATH", os.environ["PATH"].partition(":")[2])
    assert "There is no sbatch on this machine. Where there is: sbatch" in written("-N", "1", "it's mine.yaml")
    assert "Submit it with: sbatch" in written("--dry-run", "-N", "1", "it's mine.yaml")
    check_shell(script)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nproc", "auto"], "with --on slurm give the number of GPUs"),
        (["--nnodes", "1:2"], "with --on slurm give one number"),
        (["--rdzv", "a:1"], "--rdzv is not for --on slurm"),
        (["--sbatch", "time=4"], "--sbatch time=4: use --time"),
        (["--sbatch", "requeue"], "the script depends on its own value"),
        (["--partition", "a; rm -rf"], "a value without blanks or quotes"),
        (["--ray-address", "auto"], "--ray-address is for --on ray"),
    ],
)
def test_what_does_not_fit_is_said(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("")
    done = CliRunner().invoke(app, ["launch", "--on", "slurm", *words, "a.yaml"])
    assert done.exit_code == 2, done.output
    assert message in done.output
    assert not (tmp_path / "a.sbatch").exists()


@pytest.mark.full
def test_two_nodes_save_are_queued_again_and_go_on(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, whole = tmp_path / 'it\'s a "run"', tmp_path / "whole"
    # The folder is written into the script, quotes and all.
    written("--nnodes", "2", "--cpu", "--dry-run", SCRIPT, str(folder), "wait", "5", "0")
    job = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "SLURM_JOB_NODELIST": "n[1-2]"}
    job |= {"SLURM_NNODES": "2", "SLURM_JOB_ID": str(os.getpid())}
    command = ["bash", "launched.sbatch"]
    running = subprocess.Popen(command, env=job, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 90
        while not all((folder / f"waits-{rank}").exists() for rank in range(2)):
            assert running.poll() is None, running.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        # Before the time limit Slurm signals the steps; the script itself is left alone.
        os.kill(int((slurm / "srun").read_text()), signal.SIGUSR1)
        (folder / "asked").touch()
        _, errors = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 75, errors
    assert (slurm / "scontrol").read_text() == f"requeue {job['SLURM_JOB_ID']}\n"
    assert json.loads((folder / "run/preempted.json").read_text())["reason"] == "SIGUSR1"
    (folder / "happened").touch()
    again = subprocess.run(
        command, env={**job, "SLURM_RESTART_COUNT": "1"}, capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stderr[-3000:]
    assert (slurm / "scontrol").read_text().count("requeue") == 1
    ours = [sys.executable, "-m", "trainwright", "launch", "--cpu", "-N", "2", SCRIPT, str(whole)]
    assert subprocess.run(ours, env=job, capture_output=True, check=False).returncode == 0
    assert weights(folder) == weights(whole)


def weights(folder: Path) -> list[Any]:
    return [json.loads((folder / f"weights-{rank}.json").read_text()) for rank in range(2)]
