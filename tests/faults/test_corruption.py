"""A damaged newest checkpoint is noticed, named and passed over; the run ends with the same bits."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults import runner
from trainwright import get_last_checkpoint

pytestmark = pytest.mark.slow

FILES = [
    "config.yaml",
    "log.json",
    "manifest.json",
    "model.safetensors",
    "optimizer.safetensors",
    "random.safetensors",
    "trainer_state.json",
    "training_state.json",
]


def flip(path: Path) -> None:
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 1
    path.write_bytes(contents)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "emptied": lambda path: path.write_bytes(b""),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "flipped": flip,
    "deleted": Path.unlink,
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run with checkpoints 9 and 12, and what its end looks like."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, runner.trained(folder)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_any_damage_to_any_file(
    finished: tuple[Path, str], tmp_path: Path, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder, straight = finished
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    assert sorted(path.name for path in (copy / "checkpoint-12").iterdir()) == FILES
    DAMAGES[damage](copy / "checkpoint-12" / name)
    if name == "manifest.json" and damage == "deleted":
        # What has no manifest is no checkpoint at all, so there is nothing to warn of.
        assert get_last_checkpoint(copy) == str(copy / "checkpoint-9")
    else:
        assert get_last_checkpoint(copy) == str(copy / "checkpoint-9")
        assert "checkpoint-12 is damaged" in caplog.text
        assert name in caplog.text
    assert runner.trained(copy) == straight
    repaired = get_last_checkpoint(copy)
    assert repaired == str(copy / "checkpoint-12")


def test_if_all_are_damaged_nothing_starts_over_by_itself(finished: tuple[Path, str], tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished[0], copy)
    for checkpoint in copy.glob("checkpoint-*"):
        flip(checkpoint / "model.safetensors")
    for wanted in ("auto", True):
        with pytest.raises(ValueError, match=r"Every checkpoint in .* is damaged .*trainwright verify"):
            runner.build(copy).train(resume_from_checkpoint=wanted)


def test_a_damaged_one_asked_for_by_name_is_refused_with_a_way_out(finished: tuple[Path, str], tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished[0], copy)
    flip(copy / "checkpoint-12/optimizer.safetensors")
    with pytest.raises(ValueError, match=r"optimizer.safetensors has other contents.*Resume from .*checkpoint-9"):
        runner.build(copy).train(resume_from_checkpoint=str(copy / "checkpoint-12"))


class Payload:
    """Unpickled, it writes a file."""

    def __init__(self, proof: Path) -> None:
        self.proof = str(proof)

    def __reduce__(self) -> Any:
        return (exec, (f"open({self.proof!r}, 'w').close()",))


POISONED = [
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "scaler.pt",
    "training_args.bin",
    "pytorch_model.bin",
    "custom_checkpoint_0.pkl",
    "random_states_0.pkl",
    ".metadata",
    "last.ckpt",
    "adapter_model.bin",
]


def test_poisoned_pickles_are_never_touched_and_pickle_is_not_used(finished: tuple[Path, str], tmp_path: Path) -> None:
    """In a process that cannot unpickle at all; and with poison in the files we do read, nothing runs either."""
    copy, proof = tmp_path / "run", tmp_path / "executed"
    shutil.copytree(finished[0], copy)
    shutil.rmtree(copy / "checkpoint-12")
    poison = pickle.dumps(Payload(proof))
    for name in POISONED:
        (copy / "checkpoint-9" / name).write_bytes(poison)
    script = f"""
import sys, io, json, pickle
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from tests.faults import runner
import torch
torch.set_num_threads(1)
# Once without a checkpoint, so that everything that will be imported is.
runner.trained(Path({str(tmp_path / "first")!r}))
trainer = runner.build(Path({str(copy)!r}))
def refuse(*args, **kwargs):
    raise AssertionError("unpickling")
# The import hook: whoever gets pickle from now on, or has it already, cannot load with it.
import _pickle
for module in (pickle, _pickle):
    for name in ("load", "loads", "Unpickler"):
        setattr(module, name, refuse)
torch.load = refuse
trainer.train()
print(json.dumps([trainer.state.global_step, runner.fingerprint(trainer)]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [runner.STEPS, finished[1]]
    assert not proof.exists()
    for name in FILES:
        poisoned = tmp_path / f"poisoned-{name}"
        shutil.copytree(copy, poisoned)
        shutil.rmtree(poisoned / "checkpoint-12")
        (poisoned / "checkpoint-9" / name).write_bytes(poison)
        with pytest.raises(ValueError, match="damaged"):
            runner.build(poisoned).train()
        assert not proof.exists()
