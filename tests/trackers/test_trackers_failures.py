"""Services and disks that go away in the middle of a run, and processes that are told to stop."""

from __future__ import annotations

import json
import os
import pty
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pytest

from tests.models import Plain, classification_rows
from tests.trackers.readers import READERS, status_of
from trainwright import Trainer, TrainerCallback, TrainingArguments

MakeArgs = Callable[..., TrainingArguments]


class At(TrainerCallback):
    """Does something at given steps."""

    def __init__(self, **deeds: Callable[[], Any]) -> None:
        self.deeds = {int(name.removeprefix("step_")): deed for name, deed in deeds.items()}

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 in self.deeds:
            self.deeds[state.global_step + 1]()


def train(args: TrainingArguments, *callbacks: Any) -> Trainer:
    trainer = Trainer(Plain(), args, train_dataset=classification_rows(16), callbacks=list(callbacks))
    trainer.train()
    return trainer


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "trainwright" and record.levelno >= 30]


def test_a_disk_that_takes_nothing_at_first(
    make_args: MakeArgs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "disk"
    place.write_text("not a folder")
    options = {"jsonl": {"file": str(place / "log.jsonl")}}
    args = make_args(max_steps=4, logging_steps=1, report_to=["jsonl"], tracker_options=options)
    train(args, At(step_3=place.unlink))
    lines = [json.loads(line) for line in (place / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["event"] == "log"] == [1, 2, 3, 4, 4]
    assert lines[-1]["status"] == "done"
    (message,) = warnings_in(caplog)
    assert message.startswith("The tracker jsonl fails (")


def test_a_disk_that_goes_away_and_comes_back(
    make_args: MakeArgs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place, aside = tmp_path / "disk", tmp_path / "aside"
    options = {"jsonl": {"file": str(place / "log.jsonl")}}
    args = make_args(max_steps=4, logging_steps=1, report_to=["jsonl"], tracker_options=options)
    trainer = train(args, At(step_2=lambda: place.rename(aside), step_4=lambda: shutil.move(aside, place)))
    assert trainer.state.global_step == 4
    lines = [json.loads(line) for line in (place / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["event"] == "log"] == [1, 2, 3, 4, 4]
    assert len(warnings_in(caplog)) <= 1


class Server:
    """MLflow's own server application on a port that can be closed and opened again."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder = folder
        self._server: WSGIServer | None = None

    def start(self) -> None:
        from mlflow.server import app

        self._server = make_server("127.0.0.1", self.port, app, WSGIServer, Quiet)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    folder = tmp_path / "server"
    folder.mkdir()
    # How `mlflow server` tells its application where to store.
    monkeypatch.setenv("_MLFLOW_SERVER_FILE_STORE", f"sqlite:///{folder / 'store.db'}")
    monkeypatch.setenv("_MLFLOW_SERVER_ARTIFACT_ROOT", str(folder / "artifacts"))
    # Which it sets for the whole process; this way it is gone after the test.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'store.db'}")
    one = Server(folder)
    yield one
    one.stop()


@pytest.mark.slow
def test_a_server_that_goes_away_and_comes_back_gets_everything(
    make_args: MakeArgs, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from mlflow.tracking import MlflowClient

    # The package itself would go on trying for minutes.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    server.start()
    args = make_args(max_steps=6, logging_steps=1, report_to="mlflow", logging_dir=f"localhost:{server.port}")
    trainer = train(args, At(step_3=server.stop, step_6=server.start))
    client = MlflowClient(f"sqlite:///{server.folder / 'store.db'}")
    experiment = client.get_experiment_by_name("trainwright")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    points = sorted((point.step, point.value) for point in client.get_metric_history(run.info.run_id, "train/loss"))
    logged = [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    assert [step for step, _ in points] == [1, 2, 3, 4, 5, 6]
    assert [value for _, value in points] == pytest.approx([value for _, value in logged])
    assert run.info.status == "FINISHED"
    assert sum("The tracker mlflow fails" in text for text in warnings_in(caplog)) <= 1


@pytest.mark.slow
def test_a_server_that_was_never_there_does_not_stop_the_run(
    make_args: MakeArgs, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    args = make_args(max_steps=2, logging_steps=1, report_to="mlflow", logging_dir=f"http://127.0.0.1:{server.port}")
    assert train(args).state.global_step == 2
    first, last = warnings_in(caplog)
    assert first.startswith("The tracker mlflow fails (")
    assert last == "3 logged values never reached the tracker mlflow."


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wandb", "WANDB_API_KEY"),
        ("comet_ml", "COMET_API_KEY"),
        ("clearml", "CLEARML_API_ACCESS_KEY"),
        ("trackio", "TRACKIO_WRITE_TOKEN"),
    ],
)
@pytest.mark.slow
def test_a_server_without_an_account_is_named_before_the_first_step(
    name: str, message: str, make_args: MakeArgs
) -> None:
    args = make_args(max_steps=2, report_to=name, logging_dir="http://127.0.0.1:9")
    with pytest.raises(ValueError, match=message):
        train(args)


@pytest.mark.parametrize("name", ["wandb", "comet_ml", "aim", "mlflow", "clearml", "dvclive", "trackio"])
def test_a_package_that_is_missing_is_named_before_the_first_step(
    name: str, make_args: MakeArgs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (name, "mlflow.tracking"):
        monkeypatch.setitem(sys.modules, module, None)
    trainer = Trainer(Plain(), make_args(max_steps=2, report_to=name), train_dataset=classification_rows(4))
    with pytest.raises(ValueError, match=f"report_to='{name}' needs the package {name}: pip install {name}"):
        trainer.train()
    assert trainer.state.global_step == 0


SCRIPT = """
import signal, sys, time
sys.path.insert(0, {root!r})
from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainerCallback, TrainingArguments
class Tells(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            print("STEP 3", flush=True)
            signal.raise_signal(signal.SIGTERM)
args = TrainingArguments(
    {folder!r}, max_steps=100_000, logging_steps=1, use_cpu=True, disable_tqdm=True, report_to={names!r},
    run_name="mine", project="ours", tags=["a"], hub_token="hf_canaryHubToken55530000", save_strategy="steps",
    save_steps=50_000,
)
Trainer(Plain().float(), args, train_dataset=classification_rows(16), callbacks=[Tells()]).train()
"""


@pytest.mark.slow
def test_a_signal_still_saves_and_nobody_is_asked_or_given_away(tmp_path: Path) -> None:
    """All packages at once, on a terminal where they could ask for an account, with secrets around them."""
    folder, canary = tmp_path / "run", "canary-on-the-command-line-5552"
    root = str(Path(__file__).parents[2])
    script = textwrap.dedent(SCRIPT.format(root=root, folder=str(folder), names=list(READERS)))
    keyboard, terminal = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", script, "--api_key", canary],
            env={**os.environ, "SERVICE_TOKEN": "canary-in-environment-5551"},
            stdin=terminal, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
        )  # fmt: skip
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert done.returncode == 75, done.stderr[-3000:]
    assert (folder / "checkpoint-3").is_dir()
    for name, read in READERS.items():
        stored = read(folder)
        assert stored.status == status_of(name, "stopped")
        assert [step for step, _ in stored.points["train/loss"]] == [1, 2, 3], name
    leaks = [str(path) for path in tmp_path.rglob("*") if path.is_file() and b"anary-" in _content(path)]
    leaks += [str(path) for path in tmp_path.rglob("*") if path.is_file() and b"hf_canaryHub" in _content(path)]
    assert leaks == []


def _content(path: Path) -> bytes:
    if path.suffix != ".zip":
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        return b"".join(archive.read(name) for name in archive.namelist())


@pytest.mark.slow
def test_files_that_a_kill_left_half_written_do_not_stop_the_next_process(make_args: MakeArgs) -> None:
    options = {"report_to": "dvclive", "logging_steps": 1, "save_strategy": "steps", "save_steps": 2}
    train(make_args(max_steps=2, **options))
    args = make_args(max_steps=4, **options)
    folder = Path(str(args.output_dir)) / "dvclive"
    (folder / "metrics.json").write_text('{"train/lo')
    (folder / "params.yaml").write_text("")
    trainer = Trainer(Plain(), args, train_dataset=classification_rows(16))
    trainer.train(resume_from_checkpoint=True)
    assert [step for step, _ in READERS["dvclive"](folder.parent).points["train/loss"]] == [1, 2, 3, 4]


class Damaged:
    """A tracker whose own file cannot be read."""

    def start(self, run: Any) -> None:
        json.loads("{")

    def log(self, values: dict[str, float], step: int) -> None: ...
    def finish(self, status: str) -> None: ...


def test_a_damaged_file_of_a_tracker_is_not_the_users_mistake(
    make_args: MakeArgs, caplog: pytest.LogCaptureFixture
) -> None:
    train(make_args(max_steps=2, report_to=[Damaged()]))
    assert any("The tracker Damaged fails (JSONDecodeError" in message for message in warnings_in(caplog))
