"""``alaunch``: evaluations in other processes, with the numbers that ``launch`` finds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.compat import accmt_asynchronous
from tests.compat.accmt_asynchronous import trained
from tests.compat.accmt_modules import Shared, hyper, make, samples
from trainwright.compat.accmt import HyperParameterSearch
from trainwright.compat.accmt.__main__ import main
from trainwright.compat.accmt.asynchronous.groups import EVALUATION, ended_note
from trainwright.compat.accmt.asynchronous.queue import Entry, EvaluationQueue, queue_folder

ROOT = Path(__file__).parents[2]
STEPS = [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 21]
WAYS = ("best_valid_loss", "best_accuracy", "best_train_loss", "always")


def alaunch(folder: Path, *words: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "trainwright.compat.accmt", "alaunch", "--cpu", *options]
    command += [accmt_asynchronous.__file__, str(folder), *words]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder.parent
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=150)
    return process.returncode, said


def evaluations(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """What the log has of evaluations, by step, without how fast they were."""
    lines = [json.loads(line) for line in (folder / "checkpoint-model" / "metrics.jsonl").read_text().splitlines()]
    found = []
    for line in lines:
        values = {name: line[name] for name in line if name.startswith(("val_loss", "accuracy", "count"))}
        if values:
            found.append((line["step"], {**values, "epoch": line["epoch"]}))
    return sorted(found, key=lambda item: (item[0], sorted(item[1])))


def evaluated(folder: Path) -> list[tuple[int, str]]:
    lines = (folder / "evaluated.txt").read_text().splitlines()
    return [(int(step), who) for step, who in (line.split() for line in lines)]


def assert_same_as_launched(folder: Path, alone: Path) -> None:
    """The log, the models, and what is said of them, to the bit."""
    assert evaluations(folder) == evaluations(alone)
    assert [step for step, _ in evaluations(folder)] == sorted(STEPS * 2)
    for way in WAYS:
        ours, theirs = folder / "model" / way, alone / "model" / way
        assert (ours / "status.json").read_text() == (theirs / "status.json").read_text()
        found, expected = load_file(ours / "model.safetensors"), load_file(theirs / "model.safetensors")
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert not (queue_folder(folder / "model") / "waiting").exists()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same training in one process."""
    folder = tmp_path_factory.mktemp("alone")
    trained(folder)
    return folder


@pytest.fixture
def training_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process belongs to the group that trains; nobody evaluates."""
    launcher = tmp_path / "launcher"
    launcher.mkdir()
    monkeypatch.setenv("ACCMT_ASYNC_FOLDER", str(launcher))
    monkeypatch.setenv("ACCMT_TRAIN_GROUP", "1")
    monkeypatch.setenv("ACCMT_ASYNC_LAUNCHER", str(os.getpid()))
    return launcher


@pytest.mark.slow
def test_other_processes_find_the_numbers_that_the_training_would(tmp_path: Path, alone: Path) -> None:
    code, said = ended(alaunch(tmp_path / "run"))
    assert code == 0, said
    assert_same_as_launched(tmp_path / "run", alone)
    assert evaluated(tmp_path / "run") == [(step, "evaluation") for step in STEPS]


def test_a_training_whose_evaluators_are_gone_evaluates_itself(
    tmp_path: Path, alone: Path, training_group: Path
) -> None:
    ended_note(training_group, EVALUATION).write_text("1")
    trainer = trained(tmp_path / "run", verbose=True)
    assert_same_as_launched(tmp_path / "run", alone)
    assert evaluated(tmp_path / "run") == [(step, "training") for step in STEPS]
    assert trainer.status_dict["evaluations_done"] == len(STEPS)


def test_debugging_leaves_no_queue_behind(
    tmp_path: Path, training_group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended_note(training_group, EVALUATION).write_text("1")
    monkeypatch.setenv("ACCMT_DEBUG_MODE", "3")
    trained(tmp_path / "run")
    assert len(evaluated(tmp_path / "run")) == len(STEPS)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["evaluated.txt"]


def test_what_follows_evaluations_is_refused(tmp_path: Path, training_group: Path) -> None:
    with pytest.raises(ValueError, match="patience"):
        make(tmp_path, patience=2)
    search = HyperParameterSearch(Shared, samples(), samples(8))
    search.set_parameters(learning_rate=[1e-3, 1e-1])
    with pytest.raises(ValueError, match="use launch"):
        search.optimize(n_trials=1)


def test_what_waits_is_not_left_behind_by_launch(tmp_path: Path) -> None:
    make(tmp_path, hyper(epochs=1)).fit(Shared(), samples(), samples(8))
    queue = EvaluationQueue(queue_folder(tmp_path / "model"))
    queue.begin(0)
    queue.add(_entry(7), {"weight": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"1 evaluations of this training wait in .*alaunch"):
        make(tmp_path, resume=None).fit(Shared(), samples(), samples(8))


def _entry(step: int) -> Entry:
    return Entry(
        step=step,
        epoch=1.0,
        max_steps=9,
        num_train_epochs=1,
        status={},
        is_epoch_end=False,
        is_last_step=False,
        losses=[1.0, 2],
    )


def test_the_queue_holds_whole_entries_and_reads_no_others(tmp_path: Path) -> None:
    queue = EvaluationQueue(tmp_path / "queue")
    queue.begin(0)
    for step in (4, 2, 11):
        queue.add(_entry(step), {"weight": torch.full((2,), float(step))})
    # As a process leaves it that was killed while it wrote.
    (tmp_path / "queue" / "waiting" / "draft-000000013").mkdir()
    assert queue.waiting() == [2, 4, 11]
    entry, weights = queue.take(4)
    assert (entry, weights["weight"].tolist()) == (_entry(4), [4.0, 4.0])
    # What comes after the checkpoint that a run goes on from will come again.
    queue.begin(10)
    assert queue.waiting() == [2, 4]
    assert not list((tmp_path / "queue" / "waiting").glob("draft*"))
    file = tmp_path / "queue" / "waiting" / "000000002" / "entry.json"
    stored = json.loads(file.read_text())
    for wrong, said in (({**stored, "step": "2"}, "step must be"), ({**stored, "step": True}, "step must be")):
        file.write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=said):
            queue.take(2)
    file.write_text(json.dumps({**stored, "more": 1}))
    with pytest.raises(ValueError, match="not what trainwright writes"):
        queue.take(2)


def test_what_cannot_be_launched_in_two_groups_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("")
    for words, said in (
        (["alaunch", "--cpu", "--strat", "fsdp", str(tmp_path / "a.py")], "use ddp"),
        (["adebug", str(tmp_path / "a.py")], "say which GPUs train"),
        (["async-launch", "--cpu", str(tmp_path / "none.py")], "there is no file"),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err


# ---- processes that die


@pytest.mark.full
def test_evaluators_that_are_killed_leave_nothing_undone(tmp_path: Path, alone: Path) -> None:
    code, said = ended(alaunch(tmp_path / "run", "die_at=6"))
    assert code == 0, said
    assert "the evaluating processes ended with code 137" in said
    assert "The evaluating processes are gone" in said
    assert_same_as_launched(tmp_path / "run", alone)
    done = evaluated(tmp_path / "run")
    assert done[:4] == [(0, "evaluation"), (2, "evaluation"), (4, "evaluation"), (6, "evaluation")]
    assert done[4:] == [(step, "training") for step in STEPS if step >= 6]


@pytest.mark.full
@pytest.mark.parametrize("how", ["kill_at=15", "fail_at=15"])
def test_a_training_that_dies_is_gone_on_with(tmp_path: Path, alone: Path, how: str) -> None:
    code, said = ended(alaunch(tmp_path / "run", how, "slow=0.2"))
    assert code == (137 if how.startswith("kill") else 1), said
    assert "The training has ended before its time" in said
    # Everything that was asked for is done; nothing of it is done again but what comes after the checkpoint.
    assert [step for step, _ in evaluated(tmp_path / "run")] == [0, 2, 4, 6, 8, 10, 12, 14]
    code, said = ended(alaunch(tmp_path / "run"))
    assert code == 0, said
    assert [step for step, _ in evaluated(tmp_path / "run")] == [0, 2, 4, 6, 8, 10, 12, 14, 14, 16, 18, 20, 21]
    assert_same_as_launched(tmp_path / "run", alone)


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_both_groups_and_what_waits_is_done_later(
    tmp_path: Path, alone: Path, number: signal.Signals
) -> None:
    process = alaunch(tmp_path / "run", "slow=0.7")
    _wait_for(tmp_path / "run" / "evaluated.txt", "2 evaluation")
    process.send_signal(number)
    code, said = ended(process)
    assert code not in (0, 137), said
    assert not _processes_of(tmp_path / "run")
    assert EvaluationQueue(queue_folder(tmp_path / "run" / "model")).waiting(), said
    code, said = ended(alaunch(tmp_path / "run"))
    assert code == 0, said
    assert_same_as_launched(tmp_path / "run", alone)


@pytest.mark.full
def test_a_killed_launcher_leaves_no_process_behind(tmp_path: Path, alone: Path) -> None:
    process = alaunch(tmp_path / "run", "slow=0.3")
    _wait_for(tmp_path / "run" / "evaluated.txt", "2 evaluation")
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while _processes_of(tmp_path / "run") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _processes_of(tmp_path / "run")
    # The training went on, as it does under launch, and evaluated by itself.
    assert_same_as_launched(tmp_path / "run", alone)


@pytest.mark.full
def test_several_processes_in_each_group(tmp_path: Path) -> None:
    code, said = ended(alaunch(tmp_path / "run", options=("-N", "2", "-e", "0,1")))
    assert "could not be saved" not in said
    assert code == 0, said
    assert [step for step, _ in evaluations(tmp_path / "run")] == sorted([0, 2, 4, 6, 8, 10, 12] * 2)
    counts = {value for _, values in evaluations(tmp_path / "run") for name, value in values.items() if "count" in name}
    assert counts == {20.0, 9.0}
    words = [sys.executable, "-m", "trainwright.compat.accmt", "launch", "--cpu", "-N", "2"]
    result = subprocess.run(
        [*words, accmt_asynchronous.__file__, str(tmp_path / "sync")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert evaluations(tmp_path / "run") == evaluations(tmp_path / "sync")


def _wait_for(file: Path, text: str) -> None:
    deadline = time.monotonic() + 60
    while not (file.exists() and text in file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _processes_of(folder: Path) -> list[int]:
    """Processes whose command names ``folder``."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
            is_dead = (place / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        if str(folder).encode() in words and not is_dead and place.name != str(os.getpid()):
            found.append(int(place.name))
    return found
