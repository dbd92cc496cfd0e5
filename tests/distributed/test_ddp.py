"""Two real processes under torchrun, with gloo, against one process with the same batch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from trainwright.checkpoint.directory import list_checkpoints

ROOT = Path(__file__).parents[2]


def command(task: str, folder: Path, processes: int) -> list[str]:
    """How to run a task of ``training.py``."""
    script = [str(Path(__file__).with_name("training.py")), task, str(folder)]
    if processes == 1:
        return [sys.executable, *script]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return [sys.executable, *torchrun, *script]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def launch(task: str, folder: Path, processes: int) -> list[dict[str, Any]]:
    """Run a task to its end; returns what each process found."""
    done = subprocess.run(
        command(task, folder, processes),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=150,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    files = [folder / f"{task}-{processes}-{rank}.json" for rank in range(processes)]
    return [json.loads(file.read_text()) for file in files]


def close(one: Any, other: Any, tolerance: float = 1e-6) -> None:
    """Equal structures with nearly equal numbers."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            close(one[key], other[key], tolerance)
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            close(a, b, tolerance)
    elif isinstance(one, float):
        assert one == pytest.approx(other, abs=tolerance)
    else:
        assert one == other


def without(logs: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in entry.items() if key not in names} for entry in logs]


def assert_same_training(alone: dict[str, Any], together: list[dict[str, Any]], *, rows: list[int]) -> None:
    """Weights, logs, evaluations and predictions agree, and the processes saw each row once between them."""
    first = together[0]
    close(first["weights"], alone["weights"])
    # Progress within an epoch is counted in batches, of which one process has other numbers.
    close(without(first["logs"], "epoch"), without(alone["logs"], "epoch"), 1e-5)
    close(first["predictions"], alone["predictions"])
    for name in ("test_loss", "test_accuracy"):
        assert first["metrics"][name] == pytest.approx(alone["metrics"][name], abs=1e-6)
    for other in together[1:]:
        # To the last bit: they computed the same sums.
        assert other["weights"] == first["weights"]
        assert other["predictions"] == first["predictions"]
    for epoch in range(2):
        assert sorted(row for process in together for row in process["seen"][epoch]) == sorted(rows)
    assert together[0]["seen"][0] != together[0]["seen"][1]


@pytest.mark.slow
def test_two_processes_train_what_one_does(tmp_path: Path) -> None:
    alone = launch("agree", tmp_path, 1)[0]
    together = launch("agree", tmp_path, 2)
    for rows in ("32", "41", "33"):
        mine = [answer[rows] for answer in together]
        expected = list(range(int(rows)))
        if rows == "33":
            # One row was left for two processes: the second ran it too, without weight.
            fillers = [row for answer in mine for row in answer["seen"][0]]
            extra = [row for row in set(fillers) if fillers.count(row) == 2]
            assert len(extra) == 1
            close(mine[0]["weights"], alone[rows]["weights"])
            close(without(mine[0]["logs"], "epoch"), without(alone[rows]["logs"], "epoch"), 1e-5)
            assert mine[0]["weights"] == mine[1]["weights"]
            continue
        assert_same_training(alone[rows], mine, rows=expected)
    close(together[0]["5"]["weights"], alone["5"]["weights"])


@pytest.mark.slow
def test_two_processes_are_limited_to_what_one_is(tmp_path: Path) -> None:
    """As many batches of half the size each."""
    alone = launch("limits", tmp_path, 1)[0]["41"]
    together = [answer["41"] for answer in launch("limits", tmp_path, 2)]
    assert alone["steps"] == 4
    assert len(alone["predictions"]) == 4
    for epoch in range(2):
        assert len(alone["seen"][epoch]) == 24
        rows = [row for process in together for row in process["seen"][epoch]]
        assert sorted(rows) == sorted(alone["seen"][epoch])
    close(together[0]["weights"], alone["weights"])
    close(without(together[0]["logs"], "epoch"), without(alone["logs"], "epoch"), 1e-5)
    close(together[0]["predictions"], alone["predictions"])


@pytest.mark.slow
def test_a_recipe_does_the_same_on_two_processes(tmp_path: Path) -> None:
    alone = launch("recipes", tmp_path, 1)[0]
    together = launch("recipes", tmp_path, 2)
    assert together[0]["weights"] == together[1]["weights"]
    zeros = {name: sum(value == 0 for row in alone["weights"][name] for value in row) for name in ("first.weight",)}
    assert zeros["first.weight"] == round(0.7 * 48)
    close(together[0]["weights"], alone["weights"], 1e-5)


@pytest.mark.full
def test_drop_last_drops_the_same_rows_everywhere(tmp_path: Path) -> None:
    alone = launch("drop_last", tmp_path, 1)[0]["43"]
    together = [answer["43"] for answer in launch("drop_last", tmp_path, 2)]
    close(together[0]["weights"], alone["weights"])
    assert together[0]["steps"] == together[1]["steps"] == alone["steps"]


@pytest.mark.full
def test_one_process_alone_may_do_its_step_again(tmp_path: Path) -> None:
    alone = launch("agree", tmp_path, 1)[0]["32"]
    together = [answer["32"] for answer in launch("out_of_memory", tmp_path, 2)]
    close(together[0]["weights"], alone["weights"])
    assert together[0]["weights"] == together[1]["weights"]
    # What is logged is the first process's; the second ran one row at a time.
    assert [entry["micro_batch"] for entry in together[1]["logs"] if "loss" in entry] == [1] * 4


@pytest.mark.full
def test_two_processes_resume_and_load_the_best(tmp_path: Path) -> None:
    """With dropout, which each process draws for itself, and BatchNorm, whose statistics they share."""
    answers = launch("resume", tmp_path, 2)
    assert answers[0]["whole"]["weights"] == answers[1]["whole"]["weights"]
    for answer in answers:
        assert answer["resumed"]["weights"] == answer["whole"]["weights"]
        assert answer["resumed"]["logs"][-1]["step"] == answer["whole"]["logs"][-1]["step"]
    losses = {entry["step"]: entry["eval_loss"] for entry in answer["best"]["logs"] if "eval_loss" in entry}
    assert len(losses) == 2


@pytest.mark.slow
def test_modules_log_and_step_the_same_on_two_processes(tmp_path: Path) -> None:
    alone = launch("modules", tmp_path, 1)[0]
    together = launch("modules", tmp_path, 2)
    for name in ("counted", "by_hand", "own_step"):
        assert together[0][name]["weights"] == together[1][name]["weights"]
        close(together[0][name]["weights"], alone[name]["weights"])
        close(without(together[0][name]["logs"], "epoch"), without(alone[name]["logs"], "epoch"), 1e-5)
    logs = together[0]["counted"]["logs"]
    assert {"hits", "first_rank_only"} <= logs[0].keys()
    assert any("eval_b_hits" in entry for entry in logs)


@pytest.mark.full
def test_the_pymarlin_door_on_two_processes(tmp_path: Path) -> None:
    """The global batch is the same, so is the result; validation has every row once, on every process."""
    alone = launch("marlin", tmp_path, 1)[0]
    together = launch("marlin", tmp_path, 2)
    assert alone["sizes"] == [4, 4, 3]
    assert together[0]["sizes"] == [4, 2, 3]
    for answer in together:
        close(answer["weights"], alone["weights"])
        assert answer["steps"] == alone["steps"] == 6
        assert answer["rates"] == pytest.approx(alone["rates"])
        assert answer["validated"] == alone["validated"] == {"some": list(range(11)), "one": [0]}
        assert answer["outputs"] == alone["outputs"]
    assert together[0]["weights"] == together[1]["weights"]
    for epoch in range(2):
        assert sorted(together[0]["seen"][epoch] + together[1]["seen"][epoch]) == list(range(41))
    assert together[0]["seen"][0] != together[0]["seen"][1]
    saved = sorted(path.name for path in (tmp_path / "saved-2").iterdir())
    assert saved == ["model_0.safetensors", "model_1.safetensors", "model_model_1.safetensors"]


@pytest.mark.slow
def test_a_signal_stops_all_processes_after_the_same_step(tmp_path: Path) -> None:
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    stopped.mkdir()
    whole.mkdir()
    running = subprocess.Popen(command("stoppable", stopped, 2), env=ENVIRONMENT, cwd=ROOT, text=True)
    try:
        for _ in range(600):
            if (stopped / "third-step-0").exists() and (stopped / "third-step-1").exists():
                break
            time.sleep(0.1)
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=60) != 0
    finally:
        running.kill()
    saved = list_checkpoints(stopped / "run")
    assert len(saved) == 1
    assert 3 <= json.loads((saved[0] / "trainer_state.json").read_text())["global_step"] < 60
    for rank in range(2):
        (whole / f"third-step-{rank}").touch()
    assert launch("stoppable", stopped, 2)[0]["weights"] == launch("stoppable", whole, 2)[0]["weights"]
