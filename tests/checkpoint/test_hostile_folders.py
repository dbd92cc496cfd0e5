"""Checkpoint folders that somebody has tampered with: only listed files count, and nothing hangs."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.faults import runner
from tests.forging import forge
from trainwright import get_last_checkpoint
from trainwright.checkpoint.manifest import problems_of
from trainwright.core.json_files import read_json


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run with checkpoints 6 and 9 of 12, and what its end looks like."""
    root = tmp_path_factory.mktemp("finished")
    runner.trained(root / "run", save_total_limit=3)
    shutil.rmtree(root / "run/checkpoint-12")
    return root / "run", runner.trained(root / "straight")


@pytest.fixture
def folder(finished: tuple[Path, str], tmp_path: Path) -> Path:
    shutil.copytree(finished[0], tmp_path / "run")
    return tmp_path / "run"


def empty_tensors(path: Path) -> None:
    save_file({"nothing": torch.zeros(1)}, path)


#: Files that would change what is loaded if they were read, and what writes them.
ADDED: dict[str, Callable[[Path], Any]] = {
    "optimizer.safetensors.index.json": lambda path: path.write_text('{"pieces": {}}'),
    "model.safetensors.index.json": lambda path: path.write_text('{"weight_map": {}}'),
    "callbacks.safetensors": lambda path: path.write_text("not tensors"),
    "callbacks.safetensors.index.json": lambda path: path.write_text("{"),
    "recipe.yaml": lambda path: path.write_text("modifiers: [{"),
    "recipe_state.safetensors": empty_tensors,
    "adapter_model.safetensors": empty_tensors,
    "beside_adapters.safetensors": empty_tensors,
}


def test_only_listed_files_are_read(finished: tuple[Path, str], folder: Path) -> None:
    for name, add in ADDED.items():
        add(folder / "checkpoint-9" / name)
    assert problems_of(folder / "checkpoint-9") == []
    assert runner.trained(folder) == finished[1]


def listing(files: dict[str, Any]) -> Callable[[Path], None]:
    return lambda checkpoint: forge(checkpoint, files=files)


def deep(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").write_text('{"files": ' + "[" * 200_000 + "]" * 200_000 + "}")


def pipe(name: str) -> Callable[[Path], None]:
    def replace(checkpoint: Path) -> None:
        (checkpoint / name).unlink()
        os.mkfifo(checkpoint / name)

    return replace


def pipe_of_no_size(checkpoint: Path) -> None:
    """Its size is what the manifest says: it would be opened, and opening it would wait for ever."""
    pipe("model.safetensors")(checkpoint)
    listing({"model.safetensors": {"size": 0, "sha256": hashlib.sha256().hexdigest()}})(checkpoint)


def endless_device(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "model.safetensors").symlink_to("/dev/zero")
    listing({"model.safetensors": {"size": 0, "sha256": "0" * 64}})(checkpoint)


def state(name: str, **changes: Any) -> Callable[[Path], None]:
    """Change a state file, and its hash in the manifest with it."""

    def replace(checkpoint: Path) -> None:
        contents = {**json.loads((checkpoint / name).read_text()), **changes}
        rewrite(checkpoint, name, json.dumps({key: value for key, value in contents.items() if value != "gone"}))

    return replace


def rewrite(checkpoint: Path, name: str, text: str) -> None:
    (checkpoint / name).write_text(text)
    files = json.loads((checkpoint / "manifest.json").read_text())["files"]
    files[name] = {"size": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    forge(checkpoint, files=files)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "no file listed": listing({}),
    "a run that began never": lambda checkpoint: forge(checkpoint, run={"id": "0123abcd", "began": 10**400}),
    "a state that is a list": lambda checkpoint: rewrite(checkpoint, "trainer_state.json", "[]"),
    "an empty state": lambda checkpoint: rewrite(checkpoint, "trainer_state.json", "{}"),
    "a state of nothing": lambda checkpoint: rewrite(checkpoint, "training_state.json", "null"),
    "a deep state": lambda checkpoint: rewrite(checkpoint, "training_state.json", "[" * 100_000),
    "a negative step": state("trainer_state.json", global_step=-5),
    "a step of 1e30": state("trainer_state.json", global_step=1e30),
    "a step of NaN": state("trainer_state.json", global_step=math.nan),
    "data as a list": state("training_state.json", data=[]),
    "random numbers as text": state("training_state.json", random="x"),
    "no optimizer": state("training_state.json", optimizer="gone"),
    "a list": lambda checkpoint: (checkpoint / "manifest.json").write_text("[]"),
    "no files": lambda checkpoint: forge(checkpoint, files=None),
    "files as a list": lambda checkpoint: forge(checkpoint, files=["model.safetensors"]),
    "facts as text": listing({"model.safetensors": "good"}),
    "a size that is text": listing({"model.safetensors": {"size": "7", "sha256": "0" * 64}}),
    "a hash that is a number": listing({"model.safetensors": {"size": 7, "sha256": 0}}),
    "a negative size": listing({"model.safetensors": {"size": -1, "sha256": "0" * 64}}),
    "no format": lambda checkpoint: forge(checkpoint, format=None),
    "a step that is text": lambda checkpoint: forge(checkpoint, step="nine"),
    "a run that is text": lambda checkpoint: forge(checkpoint, run="../../elsewhere"),
    "deep JSON": deep,
    "not UTF-8": lambda checkpoint: (checkpoint / "manifest.json").write_bytes(b"\xff\xfe{}"),
    "huge": lambda checkpoint: os.truncate(checkpoint / "manifest.json", 2**40),
    "a pipe as manifest": pipe("manifest.json"),
    "a pipe as weights": pipe("model.safetensors"),
    "a pipe of the right size": pipe_of_no_size,
    "an endless device": endless_device,
    "a folder as weights": lambda checkpoint: (
        (checkpoint / "model.safetensors").unlink(),
        (checkpoint / "model.safetensors").mkdir(),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.timeout(30)
def test_what_makes_no_sense_is_passed_over_with_the_reason(
    folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    DAMAGES[damage](folder / "checkpoint-9")
    began = time.monotonic()
    assert get_last_checkpoint(folder) == str(folder / "checkpoint-6")
    assert time.monotonic() - began < 10
    assert "checkpoint-9 is damaged: " in caplog.text


def test_a_run_directory_whose_own_record_was_tampered_with(folder: Path, finished: tuple[Path, str]) -> None:
    for text in ("", "[]", '{"id": "../../..", "began": 0}', '{"id": 7, "began": "now"}', "[" * 100_000):
        (folder / "run.json").write_text(text)
        assert get_last_checkpoint(folder) == str(folder / "checkpoint-9")
    assert runner.trained(folder) == finished[1]
    written = json.loads((folder / "run.json").read_text())
    assert len(written["id"]) == 8


NAMES = ("config.yaml", "env.json", "events.jsonl", "metrics.jsonl", "trainer_state.json", "run.json", "preempted.json")


def test_links_in_a_run_directory_lead_nowhere(folder: Path, tmp_path: Path, finished: tuple[Path, str]) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("mine")
    for name in NAMES:
        for place in (folder / name, folder / f".{name}.writing"):
            place.unlink(missing_ok=True)
            place.symlink_to(outside)
    assert runner.trained(folder) == finished[1]
    assert outside.read_text() == "mine"


@pytest.mark.timeout(60)
def test_pipes_in_a_run_directory_are_not_waited_for(folder: Path, finished: tuple[Path, str]) -> None:
    for name in NAMES:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
    assert runner.trained(folder) == finished[1]


def test_a_folder_in_place_of_a_file_costs_no_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(ValueError, match="not a regular file"):
            read_json(tmp_path)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
