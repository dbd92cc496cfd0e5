"""People's own objects add files of any name to a checkpoint, or fail to; weights and position are saved anyway."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.faults import runner
from tests.models import tiny_gpt2, token_rows
from trainwright import KeepBest, NotSavedError, Trainer, TrainerCallback, TrainingArguments, get_last_checkpoint
from trainwright.checkpoint.directory import checkpoint_path, list_checkpoints
from trainwright.checkpoint.manifest import problems_of, read_manifest
from trainwright.checkpoint.saver import SaveJob, Saver
from trainwright.core import fsync
from trainwright.core.events import RunEvents


class Processor:
    """Something with ``save_pretrained``, as tokenizers have it."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def save_pretrained(self, folder: str) -> None:
        for name in self.names:
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)


def build(folder: Path, processor: Any = None, **extra: Any) -> Trainer:
    callbacks = extra.pop("callbacks", None)
    trainer = runner.build(folder, callbacks, **extra)
    trainer.processing_class = processor
    return trainer


def left_out(folder: Path) -> list[str]:
    found = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event["message"] for event in found if event["kind"] == "left_out"]


# ---- names


NAMES = [
    "labels+ids.json",
    "größe.txt",
    "日本.model",
    "a=b@c#d!.txt",
    "sub folder/lora+v1/(x).bin",
    "new\nline",
    "%s{}",
]


def test_any_file_name_is_written_verified_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trainer = build(folder, Processor(*NAMES))
    trainer.train()
    assert [path.name for path in list_checkpoints(folder)] == ["checkpoint-9", "checkpoint-12"]
    for checkpoint in list_checkpoints(folder):
        assert problems_of(checkpoint) == []
        assert set(NAMES) <= set(read_manifest(checkpoint)["files"])
    # The second save writes them from memory, sub-folders too.
    assert (folder / "checkpoint-12" / NAMES[4]).read_text() == NAMES[4]
    assert get_last_checkpoint(folder) == str(folder / "checkpoint-12")
    assert left_out(folder) == []


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=4, unique=True))
def test_what_is_published_can_be_read_whatever_its_files_are_called(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    run = tmp_path_factory.mktemp("run")

    def fill(folder: Path) -> None:
        for name in (*names, "one.txt"):
            try:
                folder.joinpath(name).write_text("x")
            except (OSError, ValueError):
                # What no file can be called.
                continue

    events = RunEvents()
    Saver(events).save(SaveJob(checkpoint_path(run, 1), 1, fill), background=False)
    (checkpoint,) = list_checkpoints(run)
    assert problems_of(checkpoint) == []
    there = {path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*") if not path.is_dir()}
    assert there == {"manifest.json", *read_manifest(checkpoint)["files"]}


def test_what_cannot_be_read_back_is_refused_when_it_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(Processor):
        def save_pretrained(self, folder: str) -> None:
            super().save_pretrained(folder)
            Path(os.fsdecode(os.path.join(os.fsencode(folder), b"latin-\xe9.txt"))).write_text("x")
            os.mkfifo(Path(folder, "pipe"))
            Path(folder, "nowhere").symlink_to("not-there")
            Path(folder, "back\\slash").write_text("x")
            shared = tmp_path / "shared.txt"
            shared.write_text("of another folder")
            Path(folder, "link.txt").symlink_to(shared)

    folder = tmp_path / "run"
    build(folder, Odd("good.txt"), max_steps=3).train()
    (checkpoint,) = list_checkpoints(folder)
    assert problems_of(checkpoint) == []
    assert {"good.txt", "link.txt"} <= set(read_manifest(checkpoint)["files"])
    # A checkpoint that is moved must not lose what a link pointed to.
    assert not (checkpoint / "link.txt").is_symlink()
    assert (checkpoint / "link.txt").read_text() == "of another folder"
    named = "\n".join(left_out(folder))
    assert all(word in named for word in ("latin-\\udce9.txt", "pipe", "nowhere", "back\\slash"))
    assert "pipe (it is not a regular file)" in caplog.text


@pytest.mark.parametrize("way", ["file", "link", "folder", "pipe"])
@pytest.mark.parametrize("name", ["manifest.json", "optimizer.safetensors"])
def test_names_that_a_checkpoint_needs_for_itself_are_not_given_away(tmp_path: Path, name: str, way: str) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("mine")

    class Greedy(Processor):
        def save_pretrained(self, folder: str) -> None:
            path = Path(folder, name)
            if way == "file":
                path.write_text("x")
            elif way == "link":
                path.symlink_to(outside)
            elif way == "folder":
                (path / "deeper").mkdir(parents=True)
            else:
                os.mkfifo(path)

    build(tmp_path / "run", Greedy(), max_steps=3).train()
    (checkpoint,) = list_checkpoints(tmp_path / "run")
    assert problems_of(checkpoint) == []
    assert f"it wrote {name}, a name that a checkpoint needs for itself" in left_out(tmp_path / "run")[0]
    assert outside.read_text() == "mine"


def test_a_system_that_gives_no_more_threads_gets_its_checkpoints_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "trainwright-save":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    build(tmp_path / "run", max_steps=3).train()
    assert [path.name for path in list_checkpoints(tmp_path / "run")] == ["checkpoint-3"]


# ---- failures


class Broken(RuntimeError):
    pass


class BrokenProcessor:
    def save_pretrained(self, folder: str) -> None:
        Path(folder, "half.json").write_text("{")
        raise Broken("no disk for you")


class OddState(TrainerCallback):
    """States that cannot be stored, in each of the two ways that callbacks have."""

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"thing": object()}}

    def state_dict(self) -> dict[str, Any]:
        raise Broken("not now")

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class BreakAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise Broken("the script's own mistake")


def test_objects_that_fail_cost_only_their_own_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "run"
    trainer = build(folder, BrokenProcessor(), callbacks=[OddState()])
    trainer.train()
    assert runner.fingerprint(trainer) == runner.trained(tmp_path / "straight")
    # Not the half of it that was written either.
    assert "half.json" not in read_manifest(folder / "checkpoint-12")["files"]
    named = "\n".join(left_out(folder))
    assert "the files of the tokenizer or processor (Broken: no disk for you)" in named
    assert "the state of OddState" in named
    # Every save notes it; the log says it once.
    assert len([line for line in left_out(folder) if "tokenizer" in line]) == 4
    assert len([r for r in caplog.records if "tokenizer" in r.getMessage() and r.levelno == logging.ERROR]) == 1


@pytest.mark.slow
def test_the_rescue_does_not_fail_the_same_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Broken, match="the script's own mistake"):
        build(folder, BrokenProcessor(), callbacks=[OddState(), BreakAt(5)]).train()
    assert get_last_checkpoint(folder) == str(folder / "checkpoint-5")
    trainer = build(folder, callbacks=[OddState()])
    trainer.train()
    assert runner.fingerprint(trainer) == runner.trained(tmp_path / "straight")
    assert "checkpoint-5 was saved without" in caplog.text


def test_a_generation_config_that_transformers_refuses(make_args: Any, tmp_path: Path) -> None:
    model = tiny_gpt2()
    model.generation_config.temperature = 0.3
    model.generation_config.do_sample = False
    args = make_args(max_steps=4, save_strategy="steps", save_steps=2)
    Trainer(model, args, train_dataset=token_rows(8)).train()
    folder = tmp_path / "run"
    assert [path.name for path in list_checkpoints(folder)] == ["checkpoint-2", "checkpoint-4"]
    assert "generation_config.json" in left_out(folder)[0]
    assert type(model).from_pretrained(folder / "checkpoint-4") is not None


@pytest.mark.slow
def test_a_model_is_written_without_a_generation_config_that_is_refused(make_args: Any, tmp_path: Path) -> None:
    model = tiny_gpt2()
    model.generation_config.temperature = 0.3
    model.generation_config.do_sample = False
    Trainer(model, make_args()).save_model(tmp_path / "final")
    found = type(model).from_pretrained(tmp_path / "final")
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in found.state_dict().items())


def test_a_model_whose_own_code_cannot_write_it(make_args: Any, tmp_path: Path) -> None:
    """Its weights are there all the same, and a resume finds them."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

        def save_pretrained(self, folder: str, **kwargs: Any) -> None:
            Path(folder, "half.bin").write_text("half")
            raise Broken("cannot")

    def run(folder: str, **extra: Any) -> Trainer:
        settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "learning_rate": 0.1, "resume": "auto"}
        args = make_args(output_dir=str(tmp_path / folder), **{**settings, **extra})
        trainer = Trainer(Own(), args, train_dataset=runner.rows())
        trainer.train()
        return trainer

    whole = run("whole").model.state_dict()
    run("parts", max_steps=2, lr_scheduler_type="linear")
    assert "half.bin" not in read_manifest(tmp_path / "parts/checkpoint-2")["files"]
    keep = KeepBest("train_loss", tmp_path / "best", every="1 epoch")
    args = make_args(output_dir=str(tmp_path / "kept"), max_steps=4)
    Trainer(Own(), args, train_dataset=runner.rows(), callbacks=[keep]).train()
    assert (tmp_path / "best/model.safetensors").is_file()
    resumed = run("whole")
    assert resumed.state.global_step == 4
    assert all(torch.equal(tensor, whole[name]) for name, tensor in resumed.model.state_dict().items())


def test_values_of_callbacks_come_back_as_they_were(tmp_path: Path) -> None:
    """JSON has no tuples, and its keys are text: a resumed callback would see something else."""
    seen: list[Any] = []

    class Counts(TrainerCallback):
        def state_dict(self) -> dict[str, Any]:
            return {"values": {"by_class": {0: (1, 2), 7: (3,)}, "name": "x"}}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            seen.append(state["values"])

    with pytest.raises(Broken):
        build(tmp_path / "run", callbacks=[Counts(), BreakAt(5)]).train()
    build(tmp_path / "run", callbacks=[Counts()]).train()
    assert seen == [{"by_class": {0: (1, 2), 7: (3,)}, "name": "x"}]


def test_a_tensor_that_no_checkpoint_can_hold_is_refused_before_the_first_step(make_args: Any) -> None:
    model = runner.Net()
    model.register_buffer("phase", torch.zeros(2, dtype=torch.complex128))
    args = make_args(max_steps=2, save_strategy="steps", save_steps=1)
    trainer = Trainer(model, args, train_dataset=runner.rows())
    with pytest.raises(ValueError, match=r"phase is of type torch\.complex128.*persistent=False"):
        trainer.train()
    assert trainer.state.global_step == 0


# ---- disks and folders that refuse


class Refusing:
    """``os`` on a filesystem that cannot force anything to disk."""

    def __init__(self, code: int) -> None:
        self.code = code

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, descriptor: int) -> None:
        raise OSError(self.code, os.strerror(self.code))


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_folder_that_cannot_be_forced_to_disk_still_gets_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    monkeypatch.setattr(fsync, "os", Refusing(code))
    fsync._say_that_nothing_is_forced.cache_clear()
    keep = KeepBest("train_loss", tmp_path / "best", every="3 steps")
    runner.build(tmp_path / "run", [keep]).train()
    assert [path.name for path in list_checkpoints(tmp_path / "run")] == ["checkpoint-9", "checkpoint-12"]
    assert (tmp_path / "best/model.safetensors").is_file()
    assert caplog.text.count("cannot force files to disk") == 1


def test_that_nothing_can_be_forced_is_said_once_by_many_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Files are forced to disk side by side, and whoever writes the line may take a while."""
    monkeypatch.setattr(fsync, "os", Refusing(errno.ENOSYS))
    fsync._say_that_nothing_is_forced.cache_clear()
    monkeypatch.setattr(caplog.handler, "format", lambda record: time.sleep(0.05) or record.getMessage())
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(fsync.sync_folder, [tmp_path] * 8))
    assert caplog.text.count("cannot force files to disk") == 1


def test_a_disk_that_fails_to_force_is_a_failed_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsync, "os", Refusing(errno.EIO))
    monkeypatch.setattr("trainwright.checkpoint.saver._WAITS", (0.0, 0.0))
    monkeypatch.setattr("trainwright.training.finish.LAST_ATTEMPTS", (0.0,))
    with pytest.raises(NotSavedError, match="Input/output error"):
        runner.build(tmp_path / "run").train()


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that everybody may enter and write to, which those of pytest are not."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o777)
        yield Path(place)


@pytest.mark.slow
def test_files_and_folders_that_are_read_only(open_place: Path) -> None:
    """As those are that a tokenizer copies from a cache; and rotation can delete them again."""
    folder = open_place / "run"
    command = [sys.executable, "-m", "tests.faults.read_only", str(open_place / "first"), str(folder)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in list_checkpoints(folder)] == ["checkpoint-2", "checkpoint-3"]
    assert list(folder.glob(".checkpoint-*")) == []
    assert (folder / "checkpoint-3/vocabulary/words.txt").stat().st_mode & 0o777 == 0o444


def test_the_best_model_may_have_sub_folders(make_args: Any, tmp_path: Path) -> None:
    class Nested(runner.Net):
        def save_pretrained(self, folder: str, **kwargs: Any) -> None:
            Path(folder, "adapter").mkdir()
            Path(folder, "adapter/weights.txt").write_text("w")

    keep = KeepBest("train_loss", tmp_path / "best", every="1 epoch")
    args: TrainingArguments = make_args(num_train_epochs=3)
    Trainer(Nested(), args, train_dataset=runner.rows(), callbacks=[keep]).train()
    assert (tmp_path / "best/adapter/weights.txt").read_text() == "w"
    assert json.loads((tmp_path / "best/status.json").read_text())["files"] == ["adapter"]


@pytest.mark.parametrize("odd", [torch.eye(2).to_sparse(), torch.ones(2, device="meta")], ids=["sparse", "meta"])
def test_a_callback_with_a_tensor_that_no_file_holds_costs_only_its_state(tmp_path: Path, odd: torch.Tensor) -> None:
    class Keeps(TrainerCallback):
        def state_dict(self) -> dict[str, Any]:
            return {"tensors": {"odd": odd}}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    folder = tmp_path / "run"
    build(folder, callbacks=[Keeps()], max_steps=3).train()
    assert [path.name for path in list_checkpoints(folder)] == ["checkpoint-3"]
    assert "the state of Keeps" in left_out(folder)[0]


def test_tuples_and_numbered_keys_of_a_schedule_come_back_as_they_were(tmp_path: Path) -> None:
    class Remembers(torch.optim.lr_scheduler.LRScheduler):
        """Keeps what cannot be told from an empty one what it will be."""

        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.pairs: list[tuple[int, int]] = []
            self.seen: dict[int, int] = {}
            super().__init__(optimizer)

        def get_lr(self) -> list[Any]:
            self.pairs.append((self.last_epoch, 1))
            self.seen[self.last_epoch] = self.seen.get(self.last_epoch - 1, 0) + 1
            return [float(rate) / len(set(self.pairs)) / self.seen[self.last_epoch] for rate in self.base_lrs]

    def run(checkpoint: str | None = None) -> Trainer:
        args = build(tmp_path / "run", max_steps=6, resume=None).args
        model = runner.Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tools = (optimizer, Remembers(optimizer))
        trainer = Trainer(model, args, train_dataset=runner.rows(), optimizers=tools)
        trainer.train(resume_from_checkpoint=checkpoint)
        return trainer

    whole = run()
    again = run(str(tmp_path / "run/checkpoint-3"))
    assert again.lr_scheduler.state_dict() == whole.lr_scheduler.state_dict()
    assert runner.fingerprint(again) == runner.fingerprint(whole)
