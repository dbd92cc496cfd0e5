"""``python -m trainwright.compat.accmt``, and starting several processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.compat.accmt_modules import Shared, hyper, make, samples
from trainwright.compat.accmt import HyperParameters
from trainwright.compat.accmt.__main__ import main
from trainwright.compat.accmt.strategies import settings_of
from trainwright.launch.torchrun import launch, torchrun_command

ROOT = Path(__file__).parents[2]


def accmt(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "trainwright.compat.accmt", *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_launch_hands_on_arguments_and_the_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "a folder" / "my script.py"
    script.parent.mkdir()
    script.write_text("import sys; print(sys.argv[1:]); raise SystemExit(int(sys.argv[1]))\n")
    result = accmt("launch", "--cpu", str(script), "7", "--name", "two words; echo no", cwd=tmp_path)
    assert result.returncode == 7
    assert result.stdout.strip() == "['7', '--name', 'two words; echo no']"


@pytest.mark.slow
def test_two_processes_train_one_model(tmp_path: Path) -> None:
    script = tmp_path / "my train.py"
    script.write_text(
        "from pathlib import Path\n"
        "from tests.compat.accmt_modules import Latest, Accuracy, hyper, make, samples\n"
        "hps = hyper(batch_size=2, scheduler={'type': 'OneCycleLR', 'max_lr': 0.1})\n"
        "trainer = make(Path('out'), hps, metrics=Accuracy('accuracy'), clip_grad=1, shuffle_train=False)\n"
        "trainer.fit(Latest(), samples(), samples(6))\n"
        "found = trainer.status_dict\n"
        "text = f\"{found['learning_rate']:.3g} {found['additional_metrics']['count']} {found['global_step']}\"\n"
        "Path(f'rank{trainer.module.accelerator.process_index}').write_text(text)\n"
        "import torch\n"
        "weights = torch.cat([p.flatten() for p in trainer.module.model.parameters()]).tolist()\n"
        "Path(f'weights{trainer.module.accelerator.process_index}').write_text(str(weights))\n"
        # Shuffled, and nobody has set a seed.
        "from tests.compat.accmt_modules import Shared\n"
        "from trainwright.compat.accmt import accelerator\n"
        "drawn = accelerator.gather(torch.tensor([torch.initial_seed() % 1000]))\n"
        "assert len(drawn) == 2\n"
        "module = Shared()\n"
        "make(Path('shuffled'), hyper(epochs=1, batch_size=2)).fit(module, samples())\n"
        "Path(f'seen{accelerator.process_index}').write_text(str(torch.cat(module.seen).tolist()))\n"
    )
    result = accmt("launch", "--cpu", "-N", "2", str(script), cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    # Seven steps of 2 x 2 samples an epoch; the schedule ends with the last, metrics count every sample once.
    assert (tmp_path / "rank0").read_text() == (tmp_path / "rank1").read_text() == "4e-07 6.0 14"
    assert (tmp_path / "weights0").read_text() == (tmp_path / "weights1").read_text()
    seen = [float(word) for rank in "01" for word in (tmp_path / f"seen{rank}").read_text().strip("[]").split(",")]
    assert sorted(seen) == sorted(samples().tensors[0][:, 0].tolist())
    alone = Shared()
    hps = hyper(batch_size=4, scheduler={"type": "OneCycleLR", "max_lr": 0.1})
    make(tmp_path / "alone", hps, clip_grad=1, shuffle_train=False).fit(alone, samples())
    whole = torch.cat([parameter.flatten() for parameter in alone.model.parameters()]).tolist()
    shared = [float(word) for word in (tmp_path / "weights0").read_text().strip("[]").split(",")]
    assert shared == pytest.approx(whole, abs=1e-5)


def test_signals_reach_the_child(tmp_path: Path) -> None:
    script = (
        "import os, sys; from trainwright.launch.torchrun import launch; "
        "child = 'import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); "
        "print(1, flush=True); time.sleep(60)'; "
        "sys.exit(launch([sys.executable, '-c', child]))"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 75
    assert launch([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]) == 137


def test_commands_for_torchrun() -> None:
    command = torchrun_command(["a b.py"], processes=4, nodes=2, node_rank=1, rendezvous="host:29500")
    assert command[-1] == "a b.py"
    assert {"--nnodes=2", "--rdzv-endpoint=host:29500", "--rdzv-conf=is_host=0", "--nproc-per-node=4"} <= set(command)
    with pytest.raises(ValueError, match="rendezvous"):
        torchrun_command(["a.py"], processes=1, nodes=2)
    with pytest.raises(ValueError, match="at least 1"):
        torchrun_command(["a.py"], processes=0)


def test_what_cannot_be_launched_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("")
    for words, said in (
        (["launch", "--cpu", "--strat", "fsdq", str(tmp_path / "a.py")], "fsdp"),
        (["launch", "--cpu", "--strat", "mine.yaml", str(tmp_path / "a.py")], "files are not read"),
        (["launch", "--cpu", "--strat", "deepspeed-2-fp8", str(tmp_path / "a.py")], "fp8 is not offered"),
        (["launch", "--cpu", "--strat", "ddp-offload_opt", str(tmp_path / "a.py")], "deepspeed-1 to 3"),
        (["launch", "--cpu", str(tmp_path / "none.py")], "there is no file"),
        (["launch", "--cpu", "-N", "x", str(tmp_path / "a.py")], "a number of processes"),
        (["get", str(tmp_path / "none"), "--out", str(tmp_path / "m")], "there is no folder"),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err
    assert main(["strats"]) == 0
    listed = capsys.readouterr().out.split()
    assert "deepspeed-3-bf16-offload_opt-offload_param" in listed
    assert all(settings_of(name) for name in listed)


def test_example_and_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["example"]) == 0
    assert HyperParameters.from_config("hps_example.yaml").optim_kwargs == {"lr": 0.001}
    assert main(["example"]) == 2
    make(tmp_path).fit(Shared(), samples())
    assert main(["get", "checkpoint-model", "--out", "taken"]) == 0
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["model.safetensors"]
    assert main(["get", "checkpoint-model", "--out", "halved", "--dtype", "bfloat16"]) == 0
    whole, half = (load_file(tmp_path / name / "model.safetensors") for name in ("taken", "halved"))
    assert all(torch.equal(half[name], whole[name].bfloat16()) for name in whole)
    assert main(["get", "checkpoint-model", "--out", "other", "--dtype", "int8"]) == 2
    assert not (tmp_path / "other").exists()


def test_timings_of_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACCMT_DEBUG_TIMINGS", "1")
    make(tmp_path, hyper(epochs=1, scheduler={"type": "Constant"})).fit(Shared(), samples())
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert [line.partition(":")[0] for line in lines] == [f"step {number}" for number in range(1, 8)]
    parts = ("batch_iteration", "training_step", "backward", "optimizer_step", "scheduler_step", "zero_grad")
    assert all(f"{part} 0." in line for part in parts for line in lines)


def test_tensors_in_the_precision_of_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainwright.compat import accmt as door

    ours = torch.ones(2, dtype=torch.float64)
    assert door.precision == torch.float32
    assert door.autocast(ours).dtype == torch.float32
    monkeypatch.setenv("ACCMT_STRATEGY", "ddp-bf16")
    first, second = door.autocast(ours, ours)
    assert door.precision == first.dtype == second.dtype == torch.bfloat16
    door.autocast_(ours)
    assert ours.dtype == torch.bfloat16
