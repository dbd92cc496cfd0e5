"""The log of a run: in metrics.jsonl, with the newest entries in checkpoints, whole again after a resume."""

from __future__ import annotations

import copy
import json
import math
import os
import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults import runner
from trainwright import Trainer, TrainerCallback, TrainingArguments
from trainwright.callbacks.monitor import Monitor
from trainwright.callbacks.progress import PrinterCallback
from trainwright.callbacks.run_directory import RunDirectoryCallback
from trainwright.checkpoint import stored_log
from trainwright.checkpoint.interchange.to_transformers import export_checkpoint
from trainwright.checkpoint.manifest import problems_of
from trainwright.core import log_record
from trainwright.core.log_history import LogFiles, LogUnreadable, LongLog

TIMES = ("runtime", "per_second", "time", "total_flos")


class Dead(BaseException):
    """The process is gone: nothing of it is caught or tidied up."""


class Script(TrainerCallback):
    """Logs, saves and dies at given steps."""

    def __init__(self, logs: dict[int, Any] | None = None, saves: Any = (), dies_at: int | None = None) -> None:
        self.logs, self.saves, self.dies_at = logs or {}, saves, dies_at
        self.trainer: Trainer | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.trainer is not None
        if state.global_step in self.logs:
            self.trainer.log(dict(self.logs[state.global_step]))
        control.should_save = state.global_step in self.saves
        if state.global_step == self.dies_at:
            raise Dead


def build(folder: Path, script: Script | None = None, callbacks: Any = (), **extra: Any) -> Trainer:
    script = script or Script(saves=(6,))
    settings: dict[str, Any] = {"logging_steps": 1, "save_strategy": "steps", "save_steps": 10**6, "disable_tqdm": True}
    script.trainer = runner.build(folder, [script, *callbacks], **{**settings, **extra})
    return script.trainer


def without_times(entries: Any) -> str:
    """As text, in which NaN equals NaN."""
    kept = [{k: v for k, v in entry.items() if not any(word in k for word in TIMES)} for entry in entries]
    return json.dumps(kept, sort_keys=True, default=str)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def stored(folder: Path, step: int) -> dict[str, Any]:
    return json.loads((folder / f"checkpoint-{step}/trainer_state.json").read_text())


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log is long after a few entries."""
    monkeypatch.setattr(stored_log, "KEPT", 3)
    monkeypatch.setattr(log_record, "KEPT_IN_MEMORY", 6)
    monkeypatch.setattr(stored_log, "KEPT_IN_MEMORY", 6)


@pytest.mark.usefixtures("short")
def test_a_checkpoint_does_not_grow_with_the_log(tmp_path: Path) -> None:
    trainer = build(tmp_path / "run", Script(saves=(6, 12)))
    trainer.train()
    sizes = [len(stored(tmp_path / "run", step)["log_history"]) for step in (6, 12)]
    assert sizes == [3, 3]
    # In the run directory, at the end, transformers' whole file.
    whole = json.loads((tmp_path / "run/trainer_state.json").read_text())["log_history"]
    assert [entry["step"] for entry in whole] == [*range(1, 13), 12]
    assert without_times(whole) == without_times(trainer.state.log_history)


def test_a_short_log_is_in_the_checkpoint_as_a_whole(tmp_path: Path) -> None:
    trainer = build(tmp_path / "run", Script(saves=(12,)))
    trainer.train()
    assert stored(tmp_path / "run", 12)["log_history"] == trainer.state.log_history[:-1]
    assert type(trainer.state.log_history) is list


@pytest.mark.slow
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("kept_in_memory", [6, 1000])
def test_a_resumed_run_has_the_whole_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_in_memory: int) -> None:
    monkeypatch.setattr(stored_log, "KEPT_IN_MEMORY", kept_in_memory)
    straight = build(tmp_path / "straight")
    straight.train()
    with pytest.raises(Dead):
        build(tmp_path / "run", Script(saves=(4, 8), dies_at=10)).train()
    # From one that is not the newest, too.
    shutil.copytree(tmp_path / "run", tmp_path / "older")
    for folder, checkpoint in (("run", "auto"), ("older", str(tmp_path / "older/checkpoint-4"))):
        again = build(tmp_path / folder)
        again.train(resume_from_checkpoint=checkpoint)
        assert without_times(again.state.log_history) == without_times(straight.state.log_history)
        assert without_times(lines(tmp_path / folder)) == without_times(lines(tmp_path / "straight"))


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_a_checkpoint_copied_alone_resumes_with_what_it_holds_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    straight = build(tmp_path / "straight")
    straight.train()
    build(tmp_path / "run", Script({2: {"eval_loss": 0.5}}, saves=(9,))).train()
    shutil.copytree(tmp_path / "run/checkpoint-9", tmp_path / "alone/checkpoint-9")
    again = build(tmp_path / "alone")
    again.train(resume_from_checkpoint=str(tmp_path / "alone/checkpoint-9"))
    assert "checkpoint-9 holds the newest 3 of 9 entries of the log" in caplog.text
    # The last evaluation is among them.
    assert [entry["step"] for entry in again.state.log_history] == [2, 7, 8, 9, 10, 11, 12, 12]
    assert again.state.log_history[0]["eval_loss"] == 0.5
    assert [line["step"] for line in lines(tmp_path / "alone")] == [2, 7, 8, 9, 10, 11, 12, 12]
    ends = straight.model.state_dict()
    assert all(torch.equal(tensor, ends[name]) for name, tensor in again.model.state_dict().items())


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("damage", ["changed", "cut", "gone", "other", "pipe", "huge", "binary"])
def test_a_metrics_file_that_is_not_the_runs_own_is_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    with pytest.raises(Dead):
        build(tmp_path / "run", Script(saves=(8,), dies_at=10)).train()
    metrics = tmp_path / "run/metrics.jsonl"
    good = metrics.read_bytes()
    other = good.replace(b"loss", b"ssol")
    contents = {"changed": good[:30] + b"9" + good[31:], "cut": good[:100], "other": other, "binary": b"\xff\x00" * 999}
    contents["huge"] = b'{"step": 1, "x": "' + b"a" * 5_000_000 + b'"}\n'
    metrics.unlink()
    if damage == "pipe":
        os.mkfifo(metrics)
    elif damage != "gone":
        metrics.write_bytes(contents[damage])
    again = build(tmp_path / "run")
    assert again.train(resume_from_checkpoint=True).global_step == 12
    assert "checkpoint-8 holds the newest 3 of 8 entries of the log" in caplog.text
    assert [entry["step"] for entry in again.state.log_history] == [6, 7, 8, 9, 10, 11, 12, 12]
    assert [line["step"] for line in lines(tmp_path / "run")[-5:]] == [9, 10, 11, 12, 12]
    assert metrics.is_file()


@pytest.mark.usefixtures("short")
def test_a_log_behind_a_link_is_read_and_not_written_through(tmp_path: Path) -> None:
    with pytest.raises(Dead):
        build(tmp_path / "run", Script(saves=(8,), dies_at=10)).train()
    metrics = tmp_path / "run/metrics.jsonl"
    elsewhere = metrics.rename(tmp_path / "elsewhere")
    before = elsewhere.read_bytes()
    metrics.symlink_to(elsewhere)
    again = build(tmp_path / "run")
    again.train(resume_from_checkpoint=True)
    assert [entry["step"] for entry in again.state.log_history] == [*range(1, 13), 12]
    assert elsewhere.read_bytes() == before
    assert not metrics.is_symlink()


ODD = {
    "nan": math.nan,
    "deep": {"a": [math.inf, {"b": -math.inf}], 3: None},
    "text": "nan",
    "größe": "Maß",
    "single": np.float32(0.5),
    "whole": np.int64(3),
    "tensor": torch.tensor([1.0, 2.0]),
    "pair": (1, 2),
    "yes": True,
    "thing": object,
    "step": 99,
    "time": "then",
}


@pytest.mark.usefixtures("short")
def test_unusual_values_come_back_as_a_checkpoint_holds_them(tmp_path: Path) -> None:
    script = Script({1: ODD}, saves=(2, 8), dies_at=10)
    with pytest.raises(Dead):
        build(tmp_path / "run", script).train()
    held = stored(tmp_path / "run", 2)["log_history"][0]
    again = build(tmp_path / "run")
    again.train(resume_from_checkpoint=True)
    entry = again.state.log_history[0]
    assert without_times([entry]) == without_times([held])
    assert math.isnan(entry["nan"])
    assert entry["deep"]["a"][0] == math.inf
    assert entry["deep"]["3"] is None
    assert (entry["text"], entry["größe"], entry["single"], entry["whole"]) == ("nan", "Maß", 0.5, 3)
    assert (entry["tensor"], entry["pair"], entry["yes"], entry["step"]) == ([1.0, 2.0], [1, 2], True, 1)
    # Other readers of metrics.jsonl know neither NaN nor Infinity.
    for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@pytest.mark.usefixtures("short")
def test_what_a_monitor_hides_from_metrics_is_in_the_log_after_a_resume(tmp_path: Path) -> None:
    """And what callbacks add to a line is not."""

    class Adds(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            kwargs["logs"]["added"] = 1.0

    others = [Monitor(train_loss=False), Adds()]
    with pytest.raises(Dead):
        build(tmp_path / "run", Script(saves=(8,), dies_at=10), others).train()
    again = build(tmp_path / "run", None, others)
    again.train(resume_from_checkpoint=True)
    entries = list(again.state.log_history)[:-1]
    assert [entry["step"] for entry in entries if "loss" in entry and "added" not in entry] == [*range(1, 13)]
    assert all("loss" not in line and "added" in line for line in lines(tmp_path / "run"))


def append(state: Any) -> None:
    state.log_history.append({"mine": state.global_step, "step": state.global_step})


def clear(state: Any) -> None:
    state.log_history.clear()


def replace(state: Any) -> None:
    state.log_history = [*state.log_history][-2:]


def remove_first(state: Any) -> None:
    del state.log_history[0]


def change_last(state: Any) -> None:
    if state.log_history:
        state.log_history[-1]["mine"] = state.global_step


@pytest.mark.slow
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("change", [append, clear, replace, remove_first, change_last])
def test_a_log_that_callbacks_change_is_what_they_made_of_it(tmp_path: Path, change: Any) -> None:
    class Changes(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step in (4, 5, 9):
                change(state)

    straight = build(tmp_path / "straight", None, [Changes()])
    straight.train()
    with pytest.raises(Dead):
        build(tmp_path / "run", Script(saves=(5, 8), dies_at=10), [Changes()]).train()
    again = build(tmp_path / "run", None, [Changes()])
    again.train(resume_from_checkpoint=True)
    assert without_times(again.state.log_history) == without_times(straight.state.log_history)


@pytest.mark.usefixtures("short")
def test_without_the_run_directory_the_whole_log_stays_where_it_was(tmp_path: Path) -> None:
    trainer = build(tmp_path / "run", Script(saves=(12,)))
    trainer.remove_callback(RunDirectoryCallback)
    trainer.train()
    assert type(trainer.state.log_history) is list
    assert len(trainer.state.log_history) == 13
    assert len(stored(tmp_path / "run", 12)["log_history"]) == 12
    assert not (tmp_path / "run/metrics.jsonl").exists()


@pytest.mark.usefixtures("short")
def test_a_file_that_vanishes_in_a_run_costs_no_checkpoint(tmp_path: Path) -> None:
    class Deletes(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 9:
                (tmp_path / "run/metrics.jsonl").unlink()

    trainer = build(tmp_path / "run", Script(saves=(10, 11)), [Deletes()])
    trainer.train()
    assert [problems_of(tmp_path / f"run/checkpoint-{step}") for step in (10, 11)] == [[], []]
    assert [entry["step"] for entry in stored(tmp_path / "run", 11)["log_history"]][-3:] == [9, 10, 11]
    with pytest.raises(LogUnreadable, match="not there any more"):
        list(trainer.state.log_history)


@pytest.mark.usefixtures("short")
def test_the_log_goes_whole_to_transformers(tmp_path: Path) -> None:
    build(tmp_path / "run", Script(saves=(12,))).train()
    exported = export_checkpoint(tmp_path / "run/checkpoint-12")
    told = json.loads((exported.folder / "trainer_state.json").read_text())
    assert [entry["step"] for entry in told["log_history"]] == [*range(1, 13)]
    assert not (exported.folder / "log.json").exists()
    (tmp_path / "run/metrics.jsonl").unlink()
    assert any(
        "newest entries only" in note for note in export_checkpoint(tmp_path / "run/checkpoint-12", tmp_path / "x")[2]
    )
    build(tmp_path / "hf", Script(saves=(12,)), checkpoint_format="hf").train()
    assert [entry["step"] for entry in stored(tmp_path / "hf", 12)["log_history"]] == [*range(1, 13)]


@pytest.mark.usefixtures("short")
def test_training_twice_starts_the_log_anew(tmp_path: Path) -> None:
    trainer = build(tmp_path / "run", Script(saves=(12,)))
    trainer.train()
    trainer.train()
    trainer.evaluate(runner.rows(4))
    assert [entry["step"] for entry in trainer.state.log_history] == [*range(1, 13), 12, 12]
    assert [line["step"] for line in lines(tmp_path / "run")] == [*range(1, 13), 12, 12]


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_a_course_that_was_given_up_keeps_its_log(tmp_path: Path) -> None:
    build(tmp_path / "run", Script(saves=(2, 10))).train()
    build(tmp_path / "run", Script(saves=(4,))).train(resume_from_checkpoint=str(tmp_path / "run/checkpoint-2"))
    (aside,) = tmp_path.glob("run/previous-*/checkpoint-10")
    again = build(tmp_path / "again")
    again.train(resume_from_checkpoint=str(aside))
    assert [entry["step"] for entry in again.state.log_history] == [*range(1, 13), 12]
    assert [line["step"] for line in lines(tmp_path / "again")] == [*range(1, 13), 12]


def test_lines_that_a_full_disk_cut_short_are_written_whole_afterwards(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: half of a line is written before it refuses."""

    class Fills(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            most = {5: (tmp_path / "run/metrics.jsonl").stat().st_size + 50, 9: before[0]}.get(state.global_step)
            if most is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        trainer = build(tmp_path / "run", Script(saves=(12,)), [Fills()])
        # What it prints may go to a file too.
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [line["step"] for line in lines(tmp_path / "run")] == [*range(1, 13), 12]
    assert (tmp_path / "run/checkpoint-12/log.json").is_file()


def long_log(folder: Path, count: int = 10, recent: int = 4) -> tuple[LongLog, list[dict[str, Any]]]:
    entries = [{"loss": number / 4, "step": number} for number in range(count)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"time": 0, **entry}) + "\n" for entry in entries))
    return LongLog(LogFiles(folder), count - recent, entries[-recent:]), entries


def test_a_long_log_is_a_sequence_like_any_other(tmp_path: Path) -> None:
    log, entries = long_log(tmp_path)
    assert list(log) == entries
    assert log == entries
    assert len(log) == 10
    assert list(reversed(log)) == entries[::-1]
    for index in (0, 5, 6, 9, -1, -4, -5, -10):
        assert log[index] == entries[index]
    for part in (slice(2, 8), slice(None, None, -3), slice(-3, None), slice(7, None), slice(5, 2), slice(20)):
        assert log[part] == entries[part]
    for index in (10, -11):
        with pytest.raises(IndexError):
            log[index]
    assert entries[3] in log
    assert log.index(entries[7]) == 7
    assert log.__add__([{}]) == [*entries, {}]
    # Never a part of the log in the place of the whole.
    with pytest.raises(TypeError):
        json.dumps(log)
    for twin in (copy.copy(log), copy.deepcopy(log)):
        twin.append({})
        assert list(twin) == [*entries, {}]
    assert len(log) == 10


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.insert(0, {}),
        lambda log: log.insert(8, {}),
        lambda log: log.insert(-1, {}),
        lambda log: log.insert(99, {}),
        lambda log: log.insert(-99, {}),
        lambda log: log.__setitem__(1, {}),
        lambda log: log.__setitem__(-1, {}),
        lambda log: log.__setitem__(slice(1, 9, 2), [{}] * 4),
        lambda log: log.__delitem__(2),
        lambda log: log.__delitem__(-2),
        lambda log: log.__delitem__(slice(1, 8, 3)),
        lambda log: log.__delitem__(slice(None)),
        lambda log: log.extend([{}, {}]),
        lambda log: log.pop(),
        lambda log: log.pop(0),
        lambda log: log.reverse(),
        lambda log: log.clear(),
    ],
)
def test_a_long_log_changes_as_a_list_does(tmp_path: Path, change: Any) -> None:
    log, entries = long_log(tmp_path)
    change(log)
    change(entries)
    assert list(log) == entries
    assert len(log) == len(entries)


def test_saves_are_due_by_evaluations_that_a_checkpoint_copied_alone_no_longer_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_log, "KEPT", 1)

    def evaluating(folder: Path, script: Script) -> Trainer:
        settings: dict[str, Any] = {"evaluate_every": "1 step", "checkpoint_every": "4 evals", "log_every": "1 step"}
        args = TrainingArguments(
            str(folder), max_steps=12, per_device_train_batch_size=4, report_to="none", disable_tqdm=True, **settings
        )
        rows = runner.rows()
        script.trainer = Trainer(runner.Net(), args, train_dataset=rows, eval_dataset=rows[:4], callbacks=[script])
        return script.trainer

    with pytest.raises(Dead):
        evaluating(tmp_path / "run", Script(saves=(7,), dies_at=9)).train()
    shutil.copytree(tmp_path / "run/checkpoint-7", tmp_path / "alone/checkpoint-7")
    evaluating(tmp_path / "alone", Script()).train(resume_from_checkpoint=str(tmp_path / "alone/checkpoint-7"))
    assert {path.name for path in (tmp_path / "alone").glob("checkpoint-*")} == {
        f"checkpoint-{step}" for step in (7, 8, 12)
    }


VALUES = st.one_of(
    st.sampled_from(["nan", "-inf", "\n"]),
    st.floats(),
    st.integers(-(10**9), 10**9),
    st.none(),
    st.booleans(),
    st.text(max_size=4),
)
NESTED = st.recursive(
    VALUES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)
LOGS = st.dictionaries(st.sampled_from(["a", "b", "eval_c", "time", "é"]), NESTED, max_size=3)


@pytest.mark.slow
@settings(max_examples=20)
@given(
    logs=st.dictionaries(st.integers(1, 12), LOGS, max_size=5),
    saves=st.sets(st.integers(1, 12), max_size=4),
    deaths=st.lists(st.integers(1, 12), max_size=3),
    torn=st.sampled_from(["", '{"step": 3, "lo', '{"step": 1, "loss": 9}\n', "\n"]),
)
def test_any_run_of_logs_saves_and_deaths_leaves_the_log_of_an_uninterrupted_one(
    tmp_path_factory: pytest.TempPathFactory, logs: Any, saves: Any, deaths: Any, torn: str
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_log, "KEPT", 3)
        patch.setattr(log_record, "KEPT_IN_MEMORY", 6)
        patch.setattr(stored_log, "KEPT_IN_MEMORY", 6)
        straight = build(folder / "straight", Script(logs, saves))
        straight.train()
        for death in deaths:
            try:
                build(folder / "run", Script(logs, saves, death), resume="auto").train()
            except Dead:
                with (folder / "run/metrics.jsonl").open("a") as file:
                    file.write(torn)
        again = build(folder / "run", Script(logs, saves), resume="auto")
        again.train()
        assert without_times(again.state.log_history) == without_times(straight.state.log_history)
        assert without_times(lines(folder / "run")) == without_times(lines(folder / "straight"))
    shutil.rmtree(folder)
