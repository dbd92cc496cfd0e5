"""Which tracker is meant, with which options, and where it writes."""

from __future__ import annotations

import io
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainingArguments
from trainwright.config.registry import register
from trainwright.config.warnings import TrainwrightWarning
from trainwright.trackers import build_tracker, build_trackers, options_by_tracker, servers, tracker_class
from trainwright.trackers.jsonl import JsonlTracker
from trainwright.trackers.mlflow import MlflowTracker
from trainwright.trackers.pictures import png
from trainwright.trackers.servers import server_address

MakeArgs = Callable[..., TrainingArguments]

OWN = textwrap.dedent(
    """
    from pathlib import Path

    class Lines:
        def __init__(self, *, file="lines.txt"):
            self.file = Path(file)

        def start(self, run):
            self.file.write_text("start\\n")

        def log(self, values, step):
            with self.file.open("a") as lines:
                lines.write(f"{step} {values['loss']:.3f}\\n" if "loss" in values else "")

        def finish(self, status):
            with self.file.open("a") as lines:
                lines.write(status)
    """
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://host:5000", "http://host:5000"),
        ("https://example.org/mlflow/", "https://example.org/mlflow"),
        ("host:5000", "http://host:5000"),
        ("127.0.0.1:5075", "http://127.0.0.1:5075"),
        ("[::1]:5075", "http://[::1]:5075"),
        ("localhost", "http://localhost"),
        ("localhost:5075", "http://localhost:5075"),
        ("aim://host:53800", "aim://host:53800"),
        ("logs", None),
        ("./logs", None),
        ("/var/logs", None),
        ("~/logs", None),
        ("C:\\logs", None),
        ("C:5000", None),
        ("logs/host:1", None),
        ("host:name", None),
        ("runs/localhost", None),
        ("example.org", None),
    ],
)
def test_addresses_and_paths(text: str, address: str | None) -> None:
    assert server_address(text) == address


def test_those_with_a_server() -> None:
    assert servers() == ["wandb", "comet_ml", "aim", "mlflow", "clearml", "trackio"]
    for name in servers():
        tracker: Any = build_tracker(name, {}, server="http://localhost:5000")
        assert tracker.server == "http://localhost:5000"


@pytest.mark.parametrize("name", ["tensorboard", "dvclive", "jsonl"])
def test_a_service_without_a_server_names_those_that_have(name: str, make_args: MakeArgs) -> None:
    with pytest.raises(ValueError, match=f"{name} has none; wandb, comet_ml, aim, mlflow, clearml, trackio have"):
        Trainer(Plain(), make_args(report_to=name, logging_dir="localhost:5075"), train_dataset=classification_rows(4))


def test_a_log_directory_that_is_an_address(make_args: MakeArgs, tmp_path: Path) -> None:
    (tracker,) = build_trackers(make_args(report_to="mlflow", logging_dir="localhost:5075"))
    assert isinstance(tracker, MlflowTracker)
    assert tracker.server == "http://localhost:5075"
    local: list[Any] = build_trackers(make_args(report_to=["mlflow", "jsonl"], logging_dir=str(tmp_path)))
    assert (local[0].server, local[0].folder, local[1].file) == (None, tmp_path / "mlflow", tmp_path / "tracker.jsonl")


def test_options_reach_the_tracker_they_are_for(make_args: MakeArgs, tmp_path: Path) -> None:
    options = {"jsonl": {"file": str(tmp_path / "a.jsonl")}, "mlflow": {"project": "p"}}
    built: list[Any] = build_trackers(make_args(report_to=["jsonl", "mlflow"], tracker_options=options))
    assert (built[0].file, built[1].project) == (tmp_path / "a.jsonl", "p")
    text = '{"mlflow": {"project": "q"}}'
    (tracker,) = build_trackers(make_args(report_to=["mlflow"], tracker_options=text))
    assert isinstance(tracker, MlflowTracker)
    assert tracker.project == "q"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mlflow": {"projekt": "p"}}, "mlflow has no option 'projekt' .did you mean 'project'"),
        ({"mlfow": {}}, "tracker_options has 'mlfow' .did you mean 'mlflow'"),
        ({"mlflow": 3}, "must be a dict of dicts"),
        ("mlflow", "must be a dict of dicts"),
    ],
)
def test_wrong_options(given: Any, message: str, make_args: MakeArgs) -> None:
    with pytest.raises(ValueError, match=message):
        build_trackers(make_args(report_to=["mlflow"], tracker_options=given))


def test_options_of_a_tracker_that_is_not_chosen_warn(make_args: MakeArgs) -> None:
    with pytest.warns(TrainwrightWarning, match="`tracker_options` for wandb have no effect: it is not in report_to"):
        make_args(tracker_options={"wandb": {"entity": "us"}})


def test_flat_options_by_tracker() -> None:
    assert options_by_tracker(["wandb", "jsonl"], {"entity": "us", "file": "x"}) == {
        "wandb": {"entity": "us"},
        "jsonl": {"file": "x"},
    }
    with pytest.raises(ValueError, match=r"'entitty' belongs to none of the trackers chosen .did you mean 'entity'"):
        options_by_tracker(["wandb"], {"entitty": "us"})
    with pytest.raises(ValueError, match="no tracker is chosen"):
        options_by_tracker([], {"entity": "us"})


def test_two_places_for_one_tracker() -> None:
    with pytest.raises(ValueError, match="are two places: keep one"):
        MlflowTracker(server="http://a:1", tracking_uri="http://b:1")


def test_a_tracker_from_a_file(make_args: MakeArgs, tmp_path: Path) -> None:
    (tmp_path / "own_lines_tracker.py").write_text(OWN)
    spec = f"{tmp_path / 'own_lines_tracker.py'}:Lines"
    target = tmp_path / "lines.txt"
    args = make_args(max_steps=2, logging_steps=1, report_to=spec, tracker_options={"Lines": {"file": str(target)}})
    trainer = Trainer(Plain(), args, train_dataset=classification_rows(8))
    trainer.train()
    losses = [f"{entry['step']} {entry['loss']:.3f}" for entry in trainer.state.log_history if "loss" in entry]
    assert target.read_text().split("\n") == ["start", *losses, "done"]


def test_a_class_an_object_and_a_registered_name(make_args: MakeArgs, tmp_path: Path) -> None:
    register("tracker", "my-lines")(JsonlTracker)
    mine = JsonlTracker(file=tmp_path / "object.jsonl")
    specs = [JsonlTracker, mine, "my-lines"]
    args = make_args(
        max_steps=1, report_to=specs, tracker_options={"my-lines": {"file": str(tmp_path / "named.jsonl")}}
    )
    Trainer(Plain(), args, train_dataset=classification_rows(4)).train()
    for file in ("run/tracker.jsonl", "object.jsonl", "named.jsonl"):
        assert '"status": "done"' in (tmp_path / file).read_text()
    # What is written down of the arguments can be read back as text.
    assert all(isinstance(name, str) for name in args.to_dict()["report_to"])
    with pytest.raises(ValueError, match="as an object: give file to its constructor"):
        build_tracker(mine, {"file": "x"})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (object(), "lacks start, log, finish"),
        ("wandbb", "there is no tracker 'wandbb' .did you mean 'wandb'"),
        ("nowhere.py:Own", "there is no file nowhere.py"),
    ],
)
def test_what_is_no_tracker(spec: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_tracker(spec)


def test_another_name_of_comet() -> None:
    assert TrainingArguments("x", report_to="comet").report_to == ["comet_ml"]
    assert tracker_class("comet") is tracker_class("comet_ml")


def test_pictures_are_read_as_they_were() -> None:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 4), dtype=np.uint8)
    for picture in (pixels[:, :, 0], pixels[:, :, :1], pixels[:, :, :3], pixels):
        with Image.open(io.BytesIO(png(picture))) as image:
            assert np.array_equal(np.asarray(image), np.squeeze(picture))
    with pytest.raises(ValueError, match="float64"):
        png(np.zeros((2, 2)))


def test_naming_no_tracker_imports_no_package() -> None:
    names = "wandb comet_ml aim mlflow clearml dvclive trackio tensorboard torch"
    code = f"import sys, trainwright.trackers; print([n for n in {names.split()} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
