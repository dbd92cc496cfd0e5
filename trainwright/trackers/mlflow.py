"""MLflow, in a local sqlite store or on a server. Calls to a server wait for it, in the tracker's own thread.

The client is used and not MLflow's module-level functions, whose active run belongs to a whole process.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwright.core.tracker import TrackedRun
from trainwright.trackers.naming import tagged
from trainwright.trackers.packages import environment, only_errors, package
from trainwright.trackers.pictures import file_name, picture_bytes

_STATUS = {"done": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
#: The most that one request may hold.
_PARAMETERS = 100


class MlflowTracker:
    """Writes to ``tracking_uri`` or ``server``, else ``MLFLOW_TRACKING_URI``, else ``folder/mlflow.db``.

    Look at the last with ``mlflow ui --backend-store-uri sqlite:///folder/mlflow.db``. ``tags`` are names with values,
    and stand in place of the run's words; ``run_id`` is a run of the store that is gone on with.
    """

    def __init__(
        self,
        *,
        folder: str | Path | None = None,
        server: str | None = None,
        tracking_uri: str | None = None,
        project: str | None = None,
        artifact_location: str | None = None,
        tags: Mapping[str, Any] | None = None,
        description: str | None = None,
        run_id: str | None = None,
    ) -> None:
        if server and tracking_uri and server != tracking_uri:
            raise ValueError(f"mlflow: server={server!r} and tracking_uri={tracking_uri!r} are two places: keep one.")
        self.folder = None if folder is None else Path(folder)
        self.server, self.project, self.artifact_location = tracking_uri or server, project, artifact_location
        if tags is not None and not isinstance(tags, Mapping):
            raise ValueError(
                f"mlflow: tags={tags!r} must be a dict; words alone are the run's, TrainingArguments(tags=)."
            )
        self.tags, self.description, self.wanted_run = tags, description, run_id
        self._client: Any = None
        self._run_id = ""

    def start(self, run: TrackedRun) -> str | None:
        # Read when the package is imported.
        with environment(**({"MLFLOW_LOGGING_LEVEL": "ERROR"} if only_errors() else {})):
            tracking, entities = package("mlflow.tracking", "mlflow"), package("mlflow.entities", "mlflow")
        address, artifacts = self.server or os.environ.get("MLFLOW_TRACKING_URI"), self.artifact_location
        if address is None:
            folder = (self.folder or run.folder / "mlflow").absolute()
            folder.mkdir(parents=True, exist_ok=True)
            address, artifacts = f"sqlite:///{folder / 'mlflow.db'}", artifacts or (folder / "artifacts").as_uri()
        self._client = tracking.MlflowClient(address)
        if run.earlier_id and self._go_on(run.earlier_id):
            return self._run_id
        if self.wanted_run is not None:
            if not self._go_on(self.wanted_run):
                raise ValueError(f"mlflow: there is no run {self.wanted_run!r} in {address}.")
            return self._run_id
        experiment = self.project or os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.project
        found = self._client.get_experiment_by_name(experiment)
        where = found.experiment_id if found else self._client.create_experiment(experiment, artifacts)
        created = self._client.create_run(where, run_name=run.name, tags=self._tags(run))
        self._run_id = created.info.run_id
        # Parameters cannot be changed later, so a run that goes on keeps those that it began with.
        parameters = [entities.Param(name, str(value)) for name, value in run.config.items()]
        for begin in range(0, len(parameters), _PARAMETERS):
            self._client.log_batch(self._run_id, params=parameters[begin : begin + _PARAMETERS])
        self._client.log_dict(self._run_id, run.facts, "env.json")
        return self._run_id

    def _tags(self, run: TrackedRun) -> dict[str, str]:
        tags = dict.fromkeys(run.tags, "true")
        if self.tags is not None:
            tags = {str(name): str(value) for name, value in self.tags.items()}
        return tags if self.description is None else {**tags, "mlflow.note.content": self.description}

    def _go_on(self, run_id: str) -> bool:
        """Whether the store still knows the run; it is marked as running again."""
        errors = package("mlflow.exceptions", "mlflow")
        try:
            self._client.get_run(run_id)
        except errors.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        self._client.update_run(run_id, status="RUNNING")
        self._run_id = run_id
        return True

    def log(self, values: dict[str, float], step: int) -> None:
        metric = package("mlflow.entities", "mlflow").Metric
        now = int(time.time() * 1000)
        points = [metric(tag, float(value), now, step) for tag, value in tagged(values).items()]
        self._client.log_batch(self._run_id, metrics=points)

    def log_artifact(self, path: Path, name: str | None = None) -> None:
        if path.is_dir():
            self._client.log_artifacts(self._run_id, str(path), name or path.name)
        else:
            # A name is a folder in the store: the file keeps its own.
            self._client.log_artifact(self._run_id, str(path), name)

    def log_image(self, name: str, image: object, step: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / file_name(name, step)
            file.write_bytes(picture_bytes(image))
            self._client.log_artifact(self._run_id, str(file), "images")

    def finish(self, status: str) -> None:
        self._client.set_terminated(self._run_id, _STATUS[status])
