"""ClearML. Its package sends from a thread of its own; what it switches on for a whole process is switched off here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainwright.core.tracker import TrackedRun, finite
from trainwright.trackers.naming import tagged
from trainwright.trackers.packages import environment, only_errors, package
from trainwright.trackers.pictures import picture_file
from trainwright.trackers.servers import with_port

#: Libraries that the package would hook into; a name that is missing here would count as switched on.
_FRAMEWORKS = (
    "matplotlib tensorflow tensorboard pytorch xgboost scikit fastai lightgbm hydra detect_repository tfdefines joblib "
    "megengine catboost gradio jsonargparse"
)
_CREDENTIALS = ("CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY")


class ClearmlTracker:
    """Online where there is an account (``clearml-init``, or its two keys), else an offline session in ``folder``.

    ``clearml.Task.import_offline_session`` uploads the latter. ``server`` is the address of its API (port 8008 unless
    given). A task that the script opened itself (``Task.init``) is used and left open. NaN and infinity are left out:
    the service would show them as 0.
    """

    def __init__(
        self,
        *,
        folder: str | Path | None = None,
        server: str | None = None,
        project: str | None = None,
        output_uri: str | None = None,
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        self.server, self.project, self.output_uri = server, project, output_uri
        self._task: Any = None
        self._is_ours = True

    def start(self, run: TrackedRun) -> str | None:
        folder = (self.folder or run.folder / "clearml").absolute()
        # Read when a task begins: where an offline session goes.
        with environment(CLEARML_CACHE_DIR=str(folder)):
            task = package("clearml", "clearml").Task
            self._is_ours = task.current_task() is None
            with _unprinted():
                self._task = task.current_task() or self._open(task, run)
        if run.tags and not self._is_ours:
            self._task.add_tags(list(run.tags))
        # Steps are those of the run: the package would add the last one to them.
        self._task.set_initial_iteration(0)
        self._task.set_parameters({f"General/{name}": value for name, value in run.config.items()})
        self._task.set_configuration_object("env", config_dict=run.facts)
        return self._task.id

    def _open(self, task: Any, run: TrackedRun) -> Any:
        has_account = _has_account()
        if self.server and not has_account:
            raise ValueError(f"report_to='clearml' with the server {self.server} needs {' and '.join(_CREDENTIALS)}.")
        if self.server:
            hosts = {"web_host": with_port(self.server, 8080), "files_host": with_port(self.server, 8081)}
            api = self.server if self.server.rpartition(":")[2].isdigit() else with_port(self.server, 8008)
            task.set_credentials(api_host=api, **hosts)
        if not has_account:
            task.set_offline(True)
        # On Linux it would send from a copy of this process, made by a fork in the middle of its threads.
        task._report_subprocess_enabled = False
        return task.init(
            project_name=self.project or os.environ.get("CLEARML_PROJECT") or run.project,
            task_name=os.environ.get("CLEARML_TASK") or run.name or run.folder.name,
            tags=list(run.tags),
            output_uri=self.output_uri,
            continue_last_task=run.earlier_id or False,
            reuse_last_task_id=False,
            auto_connect_arg_parser=False,
            auto_connect_frameworks=dict.fromkeys(_FRAMEWORKS.split(), False),
            auto_resource_monitoring=False,
            auto_connect_streams=False,
        )

    def log(self, values: dict[str, float], step: int) -> None:
        logger = self._task.get_logger()
        for tag, value in finite(tagged(values)).items():
            title, _, series = tag.partition("/")
            logger.report_scalar(title, series or title, value, step)

    def log_artifact(self, path: Path, name: str | None = None) -> None:
        self._task.upload_artifact(name or path.name, str(path), wait_on_upload=True)

    def log_image(self, name: str, image: object, step: int) -> None:
        with picture_file(image) as file:
            self._task.get_logger().report_image(name, name, step, local_path=str(file))
            self._task.flush(wait_for_uploads=True)

    def finish(self, status: str) -> None:
        if self._task is None or not self._is_ours:
            return
        self._task.set_parameter("General/status", status)
        if status == "failed":
            self._task.mark_failed(force=True, status_reason="training failed")
        elif status == "stopped":
            self._task.mark_stopped(force=True)
        with _unprinted():
            self._task.close()
        self._task = None


@contextmanager
def _unprinted() -> Iterator[None]:
    """Without what the package prints, which nothing else switches off, where the user wants to read errors alone."""
    modules = [package(f"clearml.{name}", "clearml") for name in (("task", "logger") if only_errors() else ())]
    for module in modules:
        module.print = lambda *args, **kwargs: None
    try:
        yield
    finally:
        for module in modules:
            del module.print


def _has_account() -> bool:
    if all(os.environ.get(name) for name in _CREDENTIALS):
        return True
    return Path(os.environ.get("CLEARML_CONFIG_FILE") or "~/clearml.conf").expanduser().is_file()
