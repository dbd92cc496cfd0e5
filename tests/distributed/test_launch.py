"""``trainwright launch`` on this machine: what it accepts, what it opens, and what a script finds in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner

from trainwright.cli.app import app

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
LAUNCH = [sys.executable, "-m", "trainwright", "launch", "--cpu"]


def run(*words: Any, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(word) for word in words]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, cwd=cwd, check=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nproc", "0", "a.yaml"], "--nproc 0: give a number of processes, 1 or more, or auto"),
        (["--nproc", "many", "a.yaml"], "--nproc many: give a number"),
        (["--nnodes", "2", "a.yaml"], "--rdzv HOST:PORT"),
        (["--nnodes", "4:2", "a.yaml"], "the first number must not be the larger one"),
        (["--nnodes", "x", "a.yaml"], "--nnodes x: give a number of machines"),
        (["--nnodes", "2", "--rdzv", "host", "a.yaml"], "--rdzv host: give HOST:PORT"),
        (["--nnodes", "2", "--rdzv", "host:1", "--node-rank", "2", "a.yaml"], "it is one of 0 to 1"),
        (["--rdzv", "host:1", "a.yaml"], "--rdzv host:1 is for several machines: add --nnodes N"),
        (["--node-rank", "0", "a.yaml"], "--node-rank 0 is for several machines"),
        (["--rdzv-id", "me", "a.yaml"], "--rdzv-id me is for several machines"),
        (["--time", "4", "a.yaml"], "--time is for --on slurm"),
        (["--dry-run", "a.yaml"], "--dry-run is for --on slurm"),
        (["--ray-address", "auto", "a.yaml"], "--ray-address is for --on ray"),
        (["--on", "ray", "--nnodes", "2", "a.yaml"], "--nproc is the number of workers on the whole cluster"),
        # Behind an experiment they are still the launcher's.
        (["a.yaml", "--nproc", "0"], "--nproc 0: give a number"),
        (["a.yaml", "training.seed=1", "--partition", "x"], "--partition is for --on slurm"),
    ],
)
def test_wrong_combinations_are_said_in_words(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("")
    done = CliRunner().invoke(app, ["launch", *words])
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.output.split())


@pytest.mark.slow
def test_a_script_finds_what_python_would_give_it(tmp_path: Path) -> None:
    """Its folder, its arguments (also those that launch knows), its name, and classes that a new process can import."""
    home = tmp_path / "a 'folder'"
    home.mkdir()
    (home / "beside.py").write_text("VALUE = 7\n")
    (home / "my script.py").write_text(
        "import json, multiprocessing, os, sys\n"
        "import beside\n"
        "def double(x): return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        doubled = pool.map(double, [beside.VALUE])\n"
        "    found = [sys.argv, __name__, __file__, doubled, os.getcwd(), sys.path[0]]\n"
        "    place = [os.environ.get(name, '-') for name in ('RANK', 'WORLD_SIZE')]\n"
        "    open('found' + ''.join(place), 'w').write(json.dumps(found))\n"
        "    raise SystemExit(int(sys.argv[1]))\n"
    )
    script = str(home / "my script.py")
    words = ["3", "--nproc", "5", "--name", "two words; echo $HOME"]
    expected = [[script, *words], "__main__", script, [14], str(tmp_path), str(home)]
    assert run(*LAUNCH, script, *words, cwd=tmp_path).returncode == 3
    assert json.loads((tmp_path / "found--").read_text()) == expected
    done = run(*LAUNCH, "-N", "2", script, *words, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "failed first: exit code 3" in done.stderr
    # The one that failed first has found it; the other may have been ended before.
    assert json.loads(next(tmp_path.glob("found?2")).read_text()) == expected


@pytest.mark.slow
def test_a_process_that_fails_before_the_others_have_begun_is_a_failure(tmp_path: Path) -> None:
    """The launcher ends the others then. That is no stop that somebody asked for: the group is started again."""
    (tmp_path / "script.py").write_text(
        "import os, pathlib, sys, time\n"
        "rank, began = os.environ['RANK'], pathlib.Path(f\"began-{os.environ['RANK']}\")\n"
        "with began.open('a') as file: file.write('x')\n"
        "if rank == '0':\n"
        "    other = pathlib.Path('began-1')\n"
        "    while not other.exists() or len(other.read_text()) < len(began.read_text()): time.sleep(0.05)\n"
        "    time.sleep(0.5)\n"
        "    sys.exit(3)\n"
        "time.sleep(60)\n"
    )
    done = run(*LAUNCH, "-N", "2", "--max-restarts", "1", "script.py", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert (tmp_path / "began-0").read_text() == "xx"


def listening(root: psutil.Process) -> list[tuple[str, str]]:
    """(command, address) of all sockets on which a process or its children wait for others."""
    found = []
    for process in [root, *root.children(recursive=True)]:
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr:
                found.append((" ".join(process.cmdline()[-3:]), connection.laddr.ip))
    return found


@pytest.mark.slow
def test_on_one_machine_nobody_else_can_connect(tmp_path: Path) -> None:
    script = tmp_path / "meet.py"
    script.write_text(
        "import os, time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.all_reduce(torch.ones(1))\n"
        "open(f\"met-{os.environ['RANK']}\", 'w').close()\n"
        "while not os.path.exists('enough'): time.sleep(0.05)\n"
        "os._exit(0)\n"
    )
    running = subprocess.Popen([*LAUNCH, "-N", "2", "meet.py"], env=ENVIRONMENT, cwd=tmp_path)
    try:
        deadline = time.monotonic() + 60
        while not all((tmp_path / f"met-{rank}").exists() for rank in range(2)):
            assert running.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        found = listening(psutil.Process(running.pid))
        (tmp_path / "enough").touch()
        assert running.wait(timeout=30) == 0
    finally:
        running.kill()
    # The launcher's store, and gloo's in each of the two.
    assert len(found) >= 3, found
    assert {address for _, address in found} <= {"127.0.0.1", "::1"}, found


NET = """
import os, signal
from pathlib import Path
import torch
class Net(torch.nn.Module):
    # Dies once, on one of two processes, in its ninth step.
    def __init__(self):
        super().__init__()
        self.layer, self.drop, self.calls = torch.nn.Linear(3, 2), torch.nn.Dropout(0.3), 0
    def forward(self, x, labels):
        self.calls += self.training
        mark = Path("died")
        is_to_die = os.environ.get("RANK") == "1" and Path("deadly").exists() and not mark.exists()
        if self.calls == 9 and is_to_die:
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        logits = self.layer(self.drop(x))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}
def rows():
    generator = torch.Generator().manual_seed(0)
    return [{"x": torch.randn(3, generator=generator), "labels": torch.tensor(i % 2)} for i in range(48)]
"""


@pytest.mark.full
def test_an_experiment_is_started_again_by_itself_and_ends_the_same(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(NET)
    training = {"num_train_epochs": 4, "per_device_train_batch_size": 4, "use_cpu": True, "save_strategy": "steps"}
    experiment = {"model": "mine.py:Net", "data": {"train": "mine.py:rows"}, "training": {**training, "save_steps": 4}}
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(experiment))
    words = ["e.yaml", "--nproc", "2", "--max-restarts", "1", "--trust"]
    whole = run(*LAUNCH, *words, "name=whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr[-3000:]
    (tmp_path / "deadly").touch()
    parts = run(*LAUNCH, *words, "name=parts", cwd=tmp_path)
    assert parts.returncode == 0, parts.stderr[-3000:]
    assert (tmp_path / "died").exists()
    assert "Traceback" not in parts.stderr
    one, other = (load_file(tmp_path / "runs" / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(bool((one[name] == other[name]).all()) for name in one)
    # And the folder alone goes on, for as long as it is told.
    more = run(*LAUNCH, "-N", "2", "runs/parts", "training.num_train_epochs=5", "--trust", cwd=tmp_path)
    assert more.returncode == 0, more.stderr[-3000:]
