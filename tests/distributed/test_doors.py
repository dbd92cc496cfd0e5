"""PyMarlin's and ACCMT's doors on two real processes, against one with the same batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.test_strategies import ROOT, distance

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("doors")]
SCRIPT = Path(__file__).with_name("doors.py")

Answers = dict[str, Any]


def run(command: list[str], folder: Path, tasks: str, strategy: str = "plain", processes: int = 1) -> list[Answers]:
    """What each process found in the last of ``tasks``."""
    done = subprocess.run(
        [sys.executable, *command, str(SCRIPT), tasks, str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-5000:]
    name = tasks.rsplit(",", maxsplit=1)[-1]
    files = [folder / f"{name}-{strategy}-{processes}-{rank}.json" for rank in range(processes)]
    return [json.loads(file.read_text()) for file in files]


def accmt(folder: Path, strategy: str) -> list[Answers]:
    """By ACCMT's own launcher."""
    command = ["-m", "trainwright.compat.accmt", "launch", "--cpu", "-N", "2", "--strat", strategy]
    return run(command, folder, "accmt", strategy, processes=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("doors")


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Answers]:
    marlin = run([], folder, "accmt,marlin")[0]
    return {"marlin": marlin, "accmt": json.loads((folder / "accmt-plain-1-0.json").read_text())}


def assert_same(alone: Answers, found: list[Answers]) -> None:
    """Weights, rates, losses, norms and metrics of one process; a resumed run, to the last bit."""
    expected = alone["whole"]
    for process in found:
        assert process["resumed"] == process["whole"] == found[0]["whole"]
        for name, value in expected.items():
            assert distance(process["whole"][name], value) < 1e-5, name
        # Every sample counts once, also where processes have to run as many batches as each other.
        assert process["whole"]["metrics"]["count"] == 7


@pytest.mark.slow
def test_accmt_and_pymarlin_under_torchrun(alone: dict[str, Answers], folder: Path) -> None:
    """ddp; and PyMarlin's ddp-amp, in bf16 here, with a run that goes on after its first epoch."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    found = run(torchrun, folder, "accmt,marlin", processes=2)
    trained = [json.loads((folder / f"accmt-plain-2-{rank}.json").read_text()) for rank in range(2)]
    assert_same(alone["accmt"], trained)
    for process in found:
        for case in ("amp", "full"):
            assert process[case]["steps"] == alone["marlin"][case]["steps"] == 6
            assert process[case]["validated"] == alone["marlin"][case]["validated"]
        assert distance(process["full"]["weights"], alone["marlin"]["full"]["weights"]) < 1e-6
        assert 0 < distance(process["amp"]["weights"], alone["marlin"]["full"]["weights"]) < 0.05
        assert distance(process["amp"]["weights"], alone["marlin"]["amp"]["weights"]) < 1e-3
        assert process["resumed"]["weights"] == process["amp"]["weights"] == found[0]["amp"]["weights"]
        assert process["resumed"]["epochs"] == 1


@pytest.mark.full
def test_accmt_by_fsdp(alone: dict[str, Answers], folder: Path) -> None:
    assert_same(alone["accmt"], accmt(folder, "fsdp"))


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["deepspeed-1", "deepspeed-zero2", "deepspeed-3-offload_opt", "fsdp-cpu"])
def test_accmt_by_others(alone: dict[str, Answers], folder: Path, strategy: str) -> None:
    pytest.importorskip("deepspeed")
    assert_same(alone["accmt"], accmt(folder, strategy))
