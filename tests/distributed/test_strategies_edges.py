"""FSDP2 with two processes: best models, rewinding, adapters, own saving, a full disk, generation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.test_strategies import ROOT, distance
from trainwright.trainer.hub import STATE

SCRIPT = Path(__file__).with_name("edges.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """What one process found, and the first of two."""
    folder = tmp_path_factory.mktemp("edges")
    answers = {}
    for processes in (1, 2):
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        done = subprocess.run(
            [sys.executable, *(torchrun if processes > 1 else []), str(SCRIPT), str(folder)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=170,
            cwd=ROOT,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-20000:]
        every = [json.loads((folder / f"edges-{processes}-{rank}.json").read_text()) for rank in range(processes)]
        answers[processes] = {**every[0], "last": every[-1]}
    return answers


#: One worker, so that what the tests look at is run once.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("edges")]


def test_the_best_model_and_what_is_kept(found: dict[int, dict[str, Any]]) -> None:
    alone, together = found[1]["best"], found[2]["best"]
    assert together["again"] == pytest.approx(together["best"], abs=1e-9)
    assert distance(together, alone) < 1e-6
    assert together["kept"] == 2


def test_all_stop_and_go_back_together(found: dict[int, dict[str, Any]]) -> None:
    assert found[2]["stopped"] == found[1]["stopped"] == {"steps": 3}
    assert found[2]["rewound"] == found[1]["rewound"]
    assert found[2]["rewound"]["rewinds"] == 1


def test_adapters_and_own_saving(found: dict[int, dict[str, Any]]) -> None:
    assert found[2]["adapter"]["equal"]
    assert distance(found[2]["adapter"]["weights"], found[1]["adapter"]["weights"]) < 1e-4
    # Every process is called, as it takes all of them to write.
    expected = ["config.yaml", "model.safetensors", "own.txt", "recipe.yaml", "recipe_state.safetensors"]
    assert found[2]["own_writing"]["files"] == found[1]["own_writing"]["files"] == expected
    assert found[2]["own_save"] == {"equal": True, "notes": ["note-0.txt", "note-1.txt"]}


def test_a_full_disk_in_one_process(found: dict[int, dict[str, Any]]) -> None:
    assert found[2]["full_disk"]["left"] == [f"checkpoint-{step}" for step in (1, 3, 4, 5, 6)]


def test_generation(found: dict[int, dict[str, Any]]) -> None:
    assert found[2]["generated"] == found[1]["generated"]


def test_one_process_uploads_and_each_has_its_profile(found: dict[int, dict[str, Any]]) -> None:
    first, last = found[2]["pushed"], found[2]["last"]["pushed"]
    assert first["verbs"] == found[1]["pushed"]["verbs"] == ["create", "upload", "upload", "upload"]
    assert first["places"] == ["checkpoint-3", "checkpoint-6", None]
    assert last["verbs"] == []
    assert first["traces"] == ["profile/rank-00001/trace.json", "profile/trace.json"]
    # What goes with a checkpoint and is of no use to readers of a model.
    assert len(first["state"]) == 3
    assert all(any(fnmatch(name, pattern) for pattern in STATE) for name in first["state"])


def test_one_process_asks_for_hyperparameters(found: dict[int, dict[str, Any]]) -> None:
    first, last = found[2]["searched"], found[2]["last"]["searched"]
    assert first == last
    # The second of three trials is given up after its second step; each of the others has a look after its end.
    assert [step for _, step in first["tried"]] == [1, 2, 3, 3, 1, 2, 1, 2, 3, 3]
    assert len({rate for rate, _ in first["tried"]}) == 3
    assert first["steps"] == found[1]["searched"]["steps"] == 3


def test_sparse_gradients_and_what_cannot_be_in_parts(found: dict[int, dict[str, Any]]) -> None:
    assert distance(found[2]["words"]["weights"], found[1]["words"]["weights"]) < 1e-12
    sparse, half = found[2]["words"]["refused"]
    assert "build words with sparse=False" in sparse
    assert "words.weight is torch.float64, head.weight is torch.bfloat16" in half


def test_one_clock_decides(found: dict[int, dict[str, Any]]) -> None:
    first, last = found[2]["by_time"], found[2]["last"]["by_time"]
    assert first == last
    assert len(first["evaluated"]) >= 2
    assert first["saved"] >= 2
