"""What each service has stored, read with its own package, in one form."""

from __future__ import annotations

import importlib
import json
import os
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Stored:
    """One run, as a service has it."""

    run_id: str | None = None
    name: str | None = None
    status: str | None = None
    tags: set[str] = field(default_factory=set)
    config: dict[str, Any] = field(default_factory=dict)
    points: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    #: Names of files that were stored.
    files: set[str] = field(default_factory=set)

    def add(self, tag: str, step: int, value: float) -> None:
        self.points.setdefault(tag, []).append((step, float(value)))


def read_tensorboard(folder: Path) -> Stored:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (place,) = {file.parent for file in folder.rglob("events.out.tfevents.*")}
    events: Any = EventAccumulator(str(place))
    events.Reload()
    found = Stored(name=place.name)
    for tag in events.Tags()["scalars"]:
        for point in events.Scalars(tag):
            found.add(tag, point.step, point.value)
    # By time: names of two files of one second do not tell which came first.
    last = {tag: max(events.Tensors(tag), key=lambda event: event.wall_time) for tag in events.Tags()["tensors"]}
    texts = {tag: _fenced(event.tensor_proto.string_val[0]) for tag, event in last.items()}
    found.config, found.status = texts["args"], texts["status"]["status"]
    found.tags = set(found.config["tags"])
    found.files = {file.name for file in (place / "artifacts").rglob("*")} | set(events.Tags()["images"])
    return found


def _fenced(text: bytes) -> dict[str, Any]:
    return json.loads(text.decode().strip("`\n"))


def read_wandb(folder: Path) -> Stored:
    """The package's own process writes the last records after ``finish`` has returned."""
    deadline = time.monotonic() + 20
    found = Stored()
    for file in sorted(folder.rglob("*.wandb")):
        while not any(record.HasField("exit") for record in _wandb_records(file)) and time.monotonic() < deadline:
            time.sleep(0.05)
        for record in _wandb_records(file):
            if record.HasField("run"):
                found.run_id, found.name = record.run.run_id, record.run.display_name
                found.tags |= set(record.run.tags)
                found.config.update({item.key: json.loads(item.value_json) for item in record.run.config.update})
            if record.HasField("exit"):
                found.status = str(record.exit.exit_code)
            if record.HasField("history"):
                items = {item.key or "/".join(item.nested_key): item for item in record.history.item}
                # A picture comes in parts: its kind, its path, its size.
                items = {tag: json.loads(item.value_json) for tag, item in items.items() if len(item.nested_key) < 2}
                for tag, value in items.items():
                    if not tag.startswith("_") and not isinstance(value, dict):
                        found.add(tag, items["train/global_step"], value)
            if record.HasField("artifact"):
                found.files.add(record.artifact.name)
            if record.HasField("request") and record.request.HasField("log_artifact"):
                found.files.add(record.request.log_artifact.artifact.name)
    found.files |= {file.name.partition("_")[0] for file in folder.rglob("media/images/*")}
    return found


def _wandb_records(file: Path) -> Iterator[Any]:
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    for data in _log_records(file.read_bytes()):
        record = messages.Record()
        record.ParseFromString(data)
        yield record


def _log_records(data: bytes) -> Iterator[bytes]:
    """Records of a LevelDB log, which is what the file is: blocks of 32 KiB, records cut where a block ends."""
    place, parts = 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        place += 7
        parts += data[place : place + length]
        place += length
        if kind in (1, 4):
            yield parts
            parts = b""


def read_comet(folder: Path) -> Stored:
    found = Stored()
    for archive in sorted(folder.rglob("comet/*.zip"), key=lambda file: file.stat().st_mtime):
        with zipfile.ZipFile(archive) as stored:
            about = json.loads(stored.read("experiment.json"))
            found.run_id = about["offline_id"]
            found.tags |= set(about["tags"])
            messages = [json.loads(line) for line in stored.read("messages.json").splitlines()]
        for message in messages:
            payload = message["payload"]
            if message["type"] == "metric_msg":
                metric = payload["metric"]
                found.add(metric["metricName"], metric["step"], metric["metricValue"])
            elif message["type"] == "parameter_msg":
                found.config[payload["param"]["paramName"]] = payload["param"]["paramValue"]
            elif message["type"] == "log_other" and payload["key"] in ("Name", "status"):
                setattr(found, payload["key"].lower(), payload["value"])
            elif message["type"] == "file_upload":
                about_file = payload["additional_params"]
                found.files.add(about_file.get("fileName") or about_file["figName"])
    return found


def read_aim(folder: Path) -> Stored:
    import aim
    from aim.sdk.index_manager import RepoIndexManager

    repository = aim.Repo.from_path(str(folder / "aim"))
    (run_hash,) = repository.list_all_runs()
    # What `aim up` does before it shows anything.
    RepoIndexManager.get_index_manager(repository).index(run_hash)
    run: Any = aim.Repo(str(folder / "aim")).get_run(run_hash)
    found = Stored(run_hash, run.name, run["status"], set(run.tags), run["config"])
    for metric in run.metrics():
        steps, values = metric.data.items_list()
        for step, value in sorted(zip(steps, values[0], strict=True)):
            found.add(metric.name, step, value)
    found.files = set(run.artifacts)
    if run.get_image_sequence("pic", aim.sdk.sequence.Context({})) is not None:
        found.files.add("pic")
    return found


def read_mlflow(folder: Path) -> Stored:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}")
    (experiment,) = [e for e in client.search_experiments() if e.name == "ours"]
    (run,) = client.search_runs([experiment.experiment_id])
    found = Stored(run.info.run_id, run.info.run_name, run.info.status, config=run.data.params)
    found.tags = {name for name, value in run.data.tags.items() if value == "true"}
    for tag in run.data.metrics:
        for point in sorted(client.get_metric_history(run.info.run_id, tag), key=lambda point: point.step):
            found.add(tag, point.step, point.value)
    folders = [item.path for item in client.list_artifacts(run.info.run_id)]
    inside = [file.path for path in folders for file in client.list_artifacts(run.info.run_id, path)]
    found.files = {Path(path).name for path in (*folders, *inside)}
    return found


def read_clearml(folder: Path) -> Stored:
    (archive,) = folder.rglob("clearml/offline/*.zip")
    with zipfile.ZipFile(archive) as stored:
        names = stored.namelist()
        task = json.loads(stored.read("task.json"))
        lines = stored.read("metrics.jsonl").splitlines()
    found = Stored(task["id"], task["name"], tags=set(task["tags"]))
    found.config = {name: item["value"] for name, item in task["hyperparams"]["General"].items()}
    found.status = found.config["status"]
    for event in (event for line in lines for event in json.loads(line)):
        if event["type"] == "training_stats_scalar":
            found.add(f"{event['metric']}/{event['variant']}", event["iter"], event["value"])
    artifacts = [item["key"] for item in task["execution"]["artifacts"]]
    found.files = {*artifacts, *(Path(name).name.partition("_")[0] for name in names if "/metrics/" in name)}
    return found


def read_dvclive(folder: Path) -> Stored:
    from dvclive.serialize import load_yaml
    from dvclive.utils import parse_metrics

    class ProcessRank:
        plots_dir, metrics_file = str(folder / "dvclive/plots"), str(folder / "dvclive/metrics.json")

    history, summary = parse_metrics(ProcessRank())
    config = load_yaml(str(folder / "dvclive/params.yaml"))
    found = Stored(None, config["run_name"], summary["status"], set(config["tags"]), dict(config))
    for file, rows in history.items():
        place = Path(file)
        for row in rows:
            found.add(f"{place.parent.name}/{place.stem}", int(row["step"]), float(row[place.stem]))
    found.files = {file.name for file in (folder / "dvclive").rglob("*")}
    return found


#: The package reads at import where to look, so this is a process of its own.
_READ_TRACKIO = """
import json, pathlib, sys, trackio
from trackio.sqlite_storage import SQLiteStorage
found = []
for database in pathlib.Path(sys.argv[1]).glob("*.db"):
    for run in trackio.Api().runs(database.stem):
        logs = SQLiteStorage.get_logs(database.stem, run_id=run.id)
        artifacts = SQLiteStorage.get_run_artifacts(database.stem, run.name, run.id)["output"]
        about = {"id": run.id, "name": run.name, "config": run.config, "project": database.stem}
        found.append({**about, "alerts": run.alerts(), "logs": logs, "artifacts": artifacts})
print(json.dumps(found))
"""


def trackio_runs(place: Path) -> list[dict[str, Any]]:
    """Every run that a folder of Trackio's holds."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _READ_TRACKIO, str(place)],
        env={**os.environ, "TRACKIO_DIR": str(place)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def read_trackio(folder: Path) -> Stored:
    (run,) = trackio_runs(folder / "trackio")
    found = Stored(run["id"], run["name"], run["alerts"][0]["title"], set(run["config"]["tags"]), run["config"])
    for row in run["logs"]:
        for tag, value in row.items():
            if isinstance(value, dict):
                found.files.add(tag)
            elif tag not in ("timestamp", "step"):
                found.add(tag, row["step"], value)
    found.files |= {artifact["name"] for artifact in run["artifacts"]}
    return found


def read_jsonl(folder: Path) -> Stored:
    lines = [json.loads(line) for line in (folder / "tracker.jsonl").read_text().splitlines()]
    found = Stored(name=lines[0]["name"], tags=set(lines[0]["tags"]), config=lines[0]["config"])
    for line in lines:
        for tag, value in line.get("values", {}).items():
            found.add(tag, line["step"], value)
        if line["event"] in ("artifact", "image"):
            found.files.add(line["name"])
    found.status = lines[-1].get("status")
    return found


READERS: dict[str, Callable[[Path], Stored]] = {
    "tensorboard": read_tensorboard,
    "wandb": read_wandb,
    "comet_ml": read_comet,
    "aim": read_aim,
    "mlflow": read_mlflow,
    "clearml": read_clearml,
    "dvclive": read_dvclive,
    "trackio": read_trackio,
    "jsonl": read_jsonl,
}
#: How each service calls a run that is done, that failed, and that was stopped.
STATUS = {
    "wandb": ("0", "1", "1"),
    "mlflow": ("FINISHED", "FAILED", "KILLED"),
}


def status_of(name: str, status: str) -> str:
    words = ("done", "failed", "stopped")
    return STATUS.get(name, words)[words.index(status)]
