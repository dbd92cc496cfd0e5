"""Trackio's real package: what is in its folder or on its server afterwards, read by another process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models import Plain, classification_rows
from tests.trackers.readers import trackio_runs
from trainwright import TrackedRun, Trainer, TrainingArguments
from trainwright.config.warnings import TrainwrightWarning
from trainwright.core.tracker import Histogram
from trainwright.trackers import build_tracker, build_trackers
from trainwright.trackers.pictures import png
from trainwright.trackers.trackio import TrackioTracker

MakeArgs = Callable[..., TrainingArguments]
ROOT = str(Path(__file__).parents[2])


def values(run: dict[str, Any], tag: str) -> list[tuple[int, Any]]:
    return [(row["step"], row[tag]) for row in run["logs"] if tag in row]


def train(args: TrainingArguments) -> Trainer:
    trainer = Trainer(Plain(), args, train_dataset=classification_rows(16))
    trainer.train()
    return trainer


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "trainwright" and record.levelno >= 30]


def test_what_it_shows_besides_numbers_comes_back(tmp_path: Path) -> None:
    tracker, picture = TrackioTracker(), np.full((4, 6, 3), 200, dtype=np.uint8)
    known = tracker.start(TrackedRun(tmp_path / "run", {"_odd": 1, "rate": 0.5}, {"python": "3"}, name="/data/mine"))
    tracker.log({"loss": 0.5}, 10)
    tracker.log_histogram("weights/layer", Histogram(0.0, 1.0, [3, 1]), 10)
    tracker.log_text("said", "a <b>word</b>\n\n  **and** more", 10)
    tracker.log_image("pic", picture, 10)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "one.txt").write_text("one")
    tracker.log_artifact(tmp_path / "files", "all my files")
    tracker.finish("done")
    place = tmp_path / "run" / "trackio"
    (run,) = trackio_runs(place)
    assert (run["id"], run["name"], run["project"]) == (known, "data/mine", "trainwright")
    config = {name: value for name, value in run["config"].items() if not name.startswith("_")}
    assert config == {"odd": 1, "rate": 0.5, "tags": [], "env": {"python": "3"}}
    assert values(run, "train/loss") == [(10, 0.5)]
    ((_, found),) = values(run, "weights/layer")
    assert (found["values"], found["bins"]) == ([3, 1], [0.0, 0.5, 1.0])
    ((_, text),) = values(run, "said")
    page = (place / "media" / text["file_path"]).read_text()
    assert ">a &lt;b&gt;word&lt;/b&gt;\n\n  **and** more</pre>" in page
    ((_, shown),) = values(run, "pic")
    assert (place / "media" / shown["file_path"]).read_bytes() == png(picture)
    assert [artifact["name"] for artifact in run["artifacts"]] == ["all-my-files"]
    assert run["alerts"][0]["title"] == "done"


@pytest.mark.slow
def test_two_runs_of_one_process_write_each_into_its_own_folder(tmp_path: Path) -> None:
    """The package itself has one folder for a process."""
    trackers = [TrackioTracker(), TrackioTracker(folder=tmp_path / "elsewhere")]
    for number, tracker in enumerate(trackers):
        tracker.start(TrackedRun(tmp_path / f"run{number}"))
    for number, tracker in enumerate(trackers):
        tracker.log({"loss": float(number)}, 1)
    for tracker in trackers:
        tracker.finish("done")
    for number, place in enumerate((tmp_path / "run0/trackio", tmp_path / "elsewhere")):
        (run,) = trackio_runs(place)
        assert values(run, "train/loss") == [(1, float(number))]


@pytest.mark.slow
def test_a_run_goes_on_by_its_id_where_another_has_its_name(tmp_path: Path) -> None:
    ids = []
    for value in (1.0, 2.0):
        tracker = TrackioTracker()
        ids.append(tracker.start(TrackedRun(tmp_path, name="same")))
        tracker.log({"loss": value}, 1)
        tracker.finish("failed")
    tracker = TrackioTracker()
    assert tracker.start(TrackedRun(tmp_path, name="same", earlier_id=ids[0], step=1)) == ids[0]
    tracker.log({"loss": 3.0}, 2)
    tracker.finish("done")
    runs = {run["id"]: values(run, "train/loss") for run in trackio_runs(tmp_path / "trackio")}
    assert runs == {ids[0]: [(1, 1.0), (2, 3.0)], ids[1]: [(1, 2.0)]}


@pytest.mark.slow
def test_its_process_may_be_killed(tmp_path: Path) -> None:
    tracker = TrackioTracker()
    known = tracker.start(TrackedRun(tmp_path))
    assert tracker._process is not None
    tracker.log({"loss": 1.0}, 1)
    time.sleep(1.5)  # the package writes what it has every half second
    os.kill(tracker._process._process.pid, signal.SIGKILL)
    tracker._process._process.wait()
    tracker.log({"loss": 2.0}, 2)
    tracker.finish("done")
    (run,) = trackio_runs(tmp_path / "trackio")
    assert (run["id"], values(run, "train/loss")) == (known, [(1, 1.0), (2, 2.0)])


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_at_first_gets_everything(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.write_text("not a folder")
    tracker = TrackioTracker(folder=place)
    with pytest.raises(ConnectionError, match="disk"):
        tracker.start(TrackedRun(tmp_path))
    place.unlink()
    tracker.start(TrackedRun(tmp_path))
    tracker.log({"loss": 1.0}, 1)
    tracker.finish("stopped")
    (run,) = trackio_runs(place)
    assert (values(run, "train/loss"), run["alerts"][0]["title"]) == ([(1, 1.0)], "stopped")


# ---- what belongs to the user's process

QUIET = """
import os, sys, threading
sys.path.insert(0, {root!r})
from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainingArguments
before = dict(os.environ)
args = TrainingArguments({folder!r}, max_steps=2, logging_steps=1, use_cpu=True, report_to="trackio", hub_token="hf_aa")
Trainer(Plain(), args, train_dataset=classification_rows(16)).train()
names = [name for name in ("trackio", "gradio_client", "httpx") if name in sys.modules]
assert names == [], names
assert dict(os.environ) == before
assert [thread for thread in threading.enumerate() if "trackio" in thread.name] == []
"""


@pytest.mark.slow
def test_nothing_of_the_package_is_in_the_users_process_and_nobody_hears_of_the_run(tmp_path: Path) -> None:
    """An account alone is no wish to use it: the Hub is not even asked for its name."""
    with socket.socket() as hub:
        hub.bind(("127.0.0.1", 0))
        hub.listen()
        hub.settimeout(0)
        address = f"http://127.0.0.1:{hub.getsockname()[1]}"
        script = textwrap.dedent(QUIET.format(root=ROOT, folder=str(tmp_path / "run")))
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "HF_TOKEN": "hf_canaryToken555", "HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0"},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
        )  # fmt: skip
        with pytest.raises(BlockingIOError):
            hub.accept()
    assert done.returncode == 0, done.stderr
    assert "trackio" not in (done.stdout + done.stderr).replace("runs/trackio", "").lower()
    (run,) = trackio_runs(tmp_path / "run" / "trackio")
    assert [step for step, _ in values(run, "train/loss")] == [1, 2]
    files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert not any(b"canaryToken" in content for content in files)


OPENED = """
import sys
sys.path.insert(0, {root!r})
import trackio
from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainingArguments
own = trackio.init(project="theirs", name="own", embed=False)
args = TrainingArguments(
    {folder!r}, max_steps=2, logging_steps=1, use_cpu=True, report_to="trackio", learning_rate=0.125, tags=["a"]
)
Trainer(Plain(), args, train_dataset=classification_rows(16)).train()
assert trackio.context_vars.current_run.get() is own
trackio.log({{"after": 1.0}}, step=3)
trackio.finish()
"""


@pytest.mark.slow
def test_a_run_that_the_script_opened_is_used_and_left_open(tmp_path: Path) -> None:
    script = textwrap.dedent(OPENED.format(root=ROOT, folder=str(tmp_path / "run")))
    subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TRACKIO_DIR": str(tmp_path / "theirs"), "HF_HUB_OFFLINE": "1"}, timeout=120, check=True,
    )  # fmt: skip
    (run,) = trackio_runs(tmp_path / "theirs")
    assert (run["name"], run["project"], run["alerts"]) == ("own", "theirs", [])
    assert [step for step, _ in values(run, "train/loss")] == [1, 2]
    assert values(run, "after") == [(3, 1.0)]
    assert (run["config"]["learning_rate"], run["config"]["tags"]) == (0.125, ["a"])
    assert not (tmp_path / "run" / "trackio").exists()


# ---- a server, and the Hub


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, Path]]:
    """`trackio show`, which is the server too."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("TRACKIO_WRITE_TOKEN", "canary-write-token-5557")
    code = f"import trackio; trackio.show(open_browser=False, server_port={port})"
    about = {"TRACKIO_DIR": str(tmp_path / "server"), "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **about}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    yield port, tmp_path / "server"
    process.kill()
    process.wait()


@pytest.mark.slow
def test_a_server_of_ones_own_gets_everything(
    make_args: MakeArgs, server: tuple[int, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port, place = server
    args = make_args(max_steps=4, logging_steps=1, report_to="trackio", logging_dir=f"localhost:{port}", run_name="it")
    trainer = train(args)
    trainer.log_image("pic", np.zeros((4, 6), dtype=np.uint8))
    (tmp_path / "notes.txt").write_text("notes")
    trainer.log_artifact(tmp_path / "notes.txt")
    (run,) = trackio_runs(place)
    logged = [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    assert values(run, "train/loss") == pytest.approx(logged)
    assert [artifact["name"] for artifact in run["artifacts"]] == ["notes.txt"]
    ((_, picture),) = values(run, "pic")
    assert (place / "media" / picture["file_path"]).read_bytes() == png(np.zeros((4, 6), dtype=np.uint8))
    # Opened three times, and told once how it ended.
    assert [alert["title"] for alert in run["alerts"]] == ["done"]
    assert warnings_in(caplog) == []
    files = [file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert not any(b"canary-write" in content for content in files)


@pytest.mark.slow
def test_a_server_that_is_not_there_stops_nothing_and_values_stay_here(
    make_args: MakeArgs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRACKIO_WRITE_TOKEN", "token")
    args = make_args(max_steps=2, logging_steps=1, report_to="trackio", logging_dir="http://127.0.0.1:9")
    assert train(args).state.global_step == 2
    messages = warnings_in(caplog)
    assert any("could not create a remote client" in message for message in messages)
    assert any("They have been saved locally" in message for message in messages)
    (run,) = trackio_runs(Path(str(args.output_dir)) / "trackio")
    assert [step for step, _ in values(run, "train/loss")] == [1, 2]


@pytest.mark.slow
def test_a_space_needs_an_account_before_the_first_step(make_args: MakeArgs, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    trainer = Trainer(
        Plain(),
        make_args(max_steps=2, report_to="trackio", trackio_space_id="me/it"),
        train_dataset=classification_rows(4),
    )
    with pytest.raises(ValueError, match="a Space needs HF_TOKEN, or `hf auth login`"):
        trainer.train()
    assert trainer.state.global_step == 0


@pytest.mark.slow
def test_a_hub_that_cannot_be_reached_stops_nothing(
    make_args: MakeArgs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_canaryToken555")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    args = make_args(max_steps=2, logging_steps=1, report_to="trackio", trackio_space_id="me/it")
    assert train(args).state.global_step == 2
    first, last = warnings_in(caplog)
    assert first.startswith("The tracker trackio fails (ConnectionError: ")
    assert last == "3 logged values never reached the tracker trackio."


@pytest.mark.slow
def test_a_static_space_that_cannot_be_written_is_named_and_the_values_are_here(
    make_args: MakeArgs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_canaryToken555")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    args = make_args(max_steps=2, logging_steps=1, report_to="trackio", trackio_static_space_id="me/done")
    train(args)
    (message,) = warnings_in(caplog)
    assert message.startswith("Trackio: the static Space me/done could not be written: ")
    (run,) = trackio_runs(Path(str(args.output_dir)) / "trackio")
    assert [step for step, _ in values(run, "train/loss")] == [1, 2]


# ---- options and arguments


def test_arguments_are_options_and_options_win(make_args: MakeArgs) -> None:
    given = {"trackio_space_id": "me/live", "trackio_bucket_id": "me/data", "hub_private_repo": True}
    (tracker,) = build_trackers(make_args(report_to="trackio", **given))
    assert isinstance(tracker, TrackioTracker)
    assert (tracker.space_id, tracker.bucket_id, tracker.private) == ("me/live", "me/data", True)
    options = {"trackio": {"space_id": "me/other", "private": False, "static_space_id": "me/done", "group": "g"}}
    (tracker,) = build_trackers(make_args(report_to="trackio", tracker_options=options, **given))
    assert isinstance(tracker, TrackioTracker)
    assert (tracker.space_id, tracker.private, tracker.group) == ("me/other", False, "g")
    assert tracker.static_space_id == "me/done"
    (tracker,) = build_trackers(make_args(report_to="trackio", trackio_static_space_id=False))
    assert isinstance(tracker, TrackioTracker)
    assert tracker.static_space_id is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"server": "http://a:1", "space_id": "me/it"}, "the server http://a:1 and space_id are two places"),
        ({"server": "http://a:1", "bucket_id": "me/it"}, "the server http://a:1 and bucket_id are two places"),
        ({"server": "http://a:1?write_token=x"}, "leave write_token out .* set TRACKIO_WRITE_TOKEN"),
        ({"static_space_id": "me/it", "private": True}, "the static Space me/it would be public"),
        ({"static_space_id": True}, "the name of a Space, or False"),
    ],
)
def test_what_contradicts_itself(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_tracker("trackio", given)


def test_a_bucket_alone_warns(make_args: MakeArgs) -> None:
    args = make_args(report_to="trackio", trackio_bucket_id="me/data")
    with pytest.warns(TrainwrightWarning, match="the bucket has no effect without a Space"):
        build_trackers(args)


@pytest.mark.slow
def test_a_project_that_the_package_refuses_is_named_before_the_first_step(make_args: MakeArgs) -> None:
    trainer = Trainer(
        Plain(), make_args(max_steps=2, report_to="trackio", project="registry-x"), train_dataset=classification_rows(4)
    )
    with pytest.raises(ValueError, match="'registry-x' is not allowed"):
        trainer.train()
    assert trainer.state.global_step == 0
