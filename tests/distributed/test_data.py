"""Data of every kind among real processes: each row once, in the steps of one process, also after a resume."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed import data_training
from tests.distributed.test_ddp import ENVIRONMENT, ROOT, close
from trainwright.engines.torch.randomness import random_state_from, set_random_state

SCRIPT = Path(data_training.__file__)


def launch(task: str, folder: Path, processes: int) -> list[dict[str, Any]]:
    """Run a task to its end; returns what each process found."""
    folder.mkdir(exist_ok=True)
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *torchrun, str(SCRIPT), task, str(folder)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=170, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    files = [folder / f"{task}-{processes}-{rank}.json" for rank in range(processes)]
    return [json.loads(file.read_text()) for file in files]


def plain(answers: Any) -> Any:
    return json.loads(json.dumps(answers))


def steps_of_all(answers: list[dict[str, Any]]) -> list[tuple[int, list[int]]]:
    """The rows of each step over all processes."""
    found = []
    for parts in zip(*(answer["steps"] for answer in answers), strict=True):
        assert len({epoch for epoch, _ in parts}) == 1
        found.append((parts[0][0], sorted(row for _, rows in parts for row in rows)))
    return found


@pytest.mark.slow
def test_processes_share_data_of_every_kind(tmp_path: Path) -> None:
    """The steps, and so the weights, are those of one process with a batch as large."""
    alone = plain(data_training.sharing(tmp_path / "alone"))
    together = launch("sharing", tmp_path / "together", 2)
    for name, expected in alone.items():
        parts = [answer[name] for answer in together]
        assert steps_of_all(parts) == steps_of_all([expected]), name
        assert parts[0]["weights"] == parts[1]["weights"], name
        close(parts[0]["weights"], expected["weights"], 1e-10)
    epochs: dict[int, list[int]] = {}
    for epoch, rows in steps_of_all([answer["lengths"] for answer in together]):
        epochs.setdefault(epoch, []).extend(rows)
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(37))
    assert epochs[0] != epochs[1]


@pytest.mark.full
def test_streams_that_share_themselves_out(tmp_path: Path) -> None:
    """Every row once an epoch, as many steps on every process, and a resume to the last bit."""
    together = launch("splitting", tmp_path, 2)
    for name, count in {"shards": 29, "rows": 30, "many workers": 29, "own": 30}.items():
        steps = steps_of_all([answer[name] for answer in together])
        for epoch in (0, 1):
            rows = sorted(row for number, some in steps for row in some if number == epoch)
            assert rows == list(range(count)), (name, epoch)
        assert together[0][name]["weights"] == together[1][name]["weights"]
    for name in ("by state", "read again", "at a filler", "stride"):
        for answer in together:
            whole, resumed, stop = (answer[name][key] for key in ("whole", "resumed", "stop"))
            assert resumed["steps"] == whole["steps"][stop:], name
            assert resumed["weights"] == whole["weights"], name


def go_on(folder: Path, legs: list[tuple[int, int]]) -> None:
    """Compare a run whose parts are run by other numbers of processes with one of one process."""
    whole = plain(data_training.leg(folder / "whole", 0))
    for processes, start in legs:
        parts = (
            [plain(data_training.leg(folder / "run", start))]
            if processes == 1
            else launch(f"leg-{start}", folder / "run", processes)
        )
        for name, expected in whole.items():
            mine = [part[name] for part in parts]
            assert steps_of_all(mine) == steps_of_all([expected])[start:], (name, processes, start)
            close(mine[0]["weights"], expected["weights"], 1e-10)


@pytest.mark.slow
def test_another_number_of_processes_goes_on_in_the_same_order(tmp_path: Path) -> None:
    go_on(tmp_path, [(1, 0), (2, 4), (1, 9)])


@pytest.mark.full
def test_two_and_four_processes_go_on_with_each_other(tmp_path: Path) -> None:
    go_on(tmp_path, [(2, 0), (4, 3), (2, 8), (4, 11)])


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.full)])
def test_evaluation_is_exact_for_any_number_of_processes(tmp_path: Path, processes: int) -> None:
    alone = plain(data_training.evaluating(tmp_path / "alone"))
    together = launch("evaluating", tmp_path / "together", processes)
    for answer in together:
        assert answer.keys() == alone.keys()
        for name, expected in alone.items():
            close(answer[name], expected, 1e-9 if name == "sharded model" else 1e-12)


def test_a_process_that_joins_draws_its_own_numbers() -> None:
    before = torch.get_rng_state()
    states = [random_state_from(seed) for seed in (1, 2, 1)]
    assert torch.equal(torch.get_rng_state(), before)
    drawn = []
    for state in states:
        set_random_state(*state)
        drawn.append(torch.rand(3).tolist())
    assert drawn[0] == drawn[2] != drawn[1]
