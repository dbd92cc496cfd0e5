"""Comet. Its package sends from a thread of its own; what it switches on for a whole process is switched off here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from trainwright.core.tracker import TrackedRun
from trainwright.trackers.naming import tagged
from trainwright.trackers.packages import environment, only_errors, package
from trainwright.trackers.pictures import picture_file

#: What the package would collect by itself: code, output, arguments, metrics of other libraries.
_QUIET = {
    "log_code": False,
    "log_graph": False,
    "auto_param_logging": False,
    "auto_metric_logging": False,
    "auto_output_logging": False,
    "parse_args": False,
    "log_env_details": False,
    "log_git_metadata": False,
    "log_git_patch": False,
    "display_summary_level": 0,
}


class CometTracker:
    """Online where there is an account (``COMET_API_KEY``), else an archive in ``folder`` for ``comet upload``."""

    def __init__(
        self,
        *,
        folder: str | Path | None = None,
        server: str | None = None,
        project: str | None = None,
        workspace: str | None = None,
        online: bool | None = None,
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        self.server, self.project, self.workspace, self.online = server, project, workspace, online
        self._experiment: Any = None

    def start(self, run: TrackedRun) -> str | None:
        # Without it, importing the package hooks into the import of every other one.
        quiet = {"COMET_LOGGING_CONSOLE": "ERROR"} if only_errors() else {}
        with environment(COMET_DISABLE_AUTO_LOGGING="1", **quiet):
            comet = package("comet_ml", "comet_ml")
        has_account = bool(comet.get_config("comet.api_key"))
        if (self.server or self.online) and not has_account:
            raise ValueError("report_to='comet_ml' with a server, or online=True, needs COMET_API_KEY.")
        if self.server:
            comet.get_config()["comet.url_override"] = f"{self.server.removesuffix('/clientlib')}/clientlib/"
        online = has_account if self.online is None else self.online
        self._experiment = self._open(comet, run, online)
        if online and not self._experiment.alive:
            raise ConnectionError("Comet did not accept the experiment.")
        if run.name:
            self._experiment.set_name(run.name)
        if run.tags:
            self._experiment.add_tags(list(run.tags))
        self._experiment.log_parameters(run.config)
        self._experiment.log_other("env", json.dumps(run.facts, default=str))
        return self._experiment.get_key()

    def _open(self, comet: Any, run: TrackedRun, online: bool) -> Any:
        place: dict[str, Any] = {"workspace": self.workspace}
        place["project_name"] = self.project or os.environ.get("COMET_PROJECT_NAME") or run.project
        if run.earlier_id:
            place["experiment_key"] = run.earlier_id
        if online:
            kind = comet.ExistingExperiment if run.earlier_id else comet.Experiment
            return kind(**place, **_QUIET)
        folder = self.folder or run.folder / "comet"
        folder.mkdir(parents=True, exist_ok=True)
        kind = comet.ExistingOfflineExperiment if run.earlier_id else comet.OfflineExperiment
        return kind(offline_directory=str(folder), **place, **_QUIET)

    def log(self, values: dict[str, float], step: int) -> None:
        self._experiment.log_metrics(tagged(values), step=step)

    def log_artifact(self, path: Path, name: str | None = None) -> None:
        if path.is_dir():
            self._experiment.log_asset_folder(str(path), log_file_name=True)
        else:
            self._experiment.log_asset(str(path), file_name=name or path.name)

    def log_image(self, name: str, image: object, step: int) -> None:
        with picture_file(image) as file:
            # The file is gone when the package gets to it.
            self._experiment.log_image(str(file), name=name, step=step, copy_to_tmp=True)

    def finish(self, status: str) -> None:
        if self._experiment is not None:
            self._experiment.log_other("status", status)
            self._experiment.end()
            self._experiment = None
