"""Aim, in a local repository or on a server. Calls to a server wait for it, in the tracker's own thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trainwright.core.tracker import TrackedRun
from trainwright.trackers.naming import tagged
from trainwright.trackers.packages import environment, package
from trainwright.trackers.pictures import picture_file


class AimTracker:
    """Writes the repository ``folder/.aim``; look at it with ``aim up --repo folder``.

    ``server`` is the address of ``aim server``. Artifacts go to ``folder/artifacts`` or to ``artifacts_uri``, which a
    server needs.
    """

    def __init__(
        self,
        *,
        folder: str | Path | None = None,
        server: str | None = None,
        project: str | None = None,
        artifacts_uri: str | None = None,
        system_tracking_interval: float | None = None,
        capture_terminal_logs: bool = False,
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        self.server, self.project, self.artifacts_uri = server, project, artifacts_uri
        self._extras = {
            "system_tracking_interval": system_tracking_interval,
            "capture_terminal_logs": capture_terminal_logs,
        }
        self._run: Any = None

    def start(self, run: TrackedRun) -> str | None:
        aim = package("aim", "aim")
        folder = (self.folder or run.folder / "aim").absolute()
        if self.server is None:
            folder.mkdir(parents=True, exist_ok=True)
            artifacts: str | None = self.artifacts_uri or (folder / "artifacts").as_uri()
        else:
            artifacts = self.artifacts_uri
        address = str(folder) if self.server is None else _aim_address(self.server)
        # The package starts `python -m alembic`, which would run an alembic.py of the current folder.
        with environment(PYTHONSAFEPATH="1"):
            repository = aim.Repo.from_path(address, init=True)
        known = run.earlier_id if run.earlier_id and repository.run_exists(run.earlier_id) else None
        # A process that was killed has left its lock.
        self._run = aim.Run(known, repo=repository, force_resume=known is not None, **self._extras)
        self._run.experiment = self.project or run.project
        if artifacts is not None:
            self._run.set_artifacts_uri(artifacts)
        if run.name:
            self._run.name = run.name
        for tag in run.tags:
            if tag not in self._run.tags:
                self._run.add_tag(tag)
        self._run["config"] = run.config
        self._run["env"] = run.facts
        return self._run.hash

    def log(self, values: dict[str, float], step: int) -> None:
        for tag, value in tagged(values).items():
            self._run.track(float(value), name=tag, step=step)

    def log_artifact(self, path: Path, name: str | None = None) -> None:
        if self._run.artifacts_uri is None:
            raise ValueError(
                "An Aim server stores no files: set tracker_options={'aim': {'artifacts_uri': 's3://...'}}."
            )
        log = self._run.log_artifacts if path.is_dir() else self._run.log_artifact
        log(str(path), name=name or path.name, block=True)

    def log_image(self, name: str, image: object, step: int) -> None:
        aim = package("aim", "aim")
        with picture_file(image) as file:
            self._run.track(aim.Image(str(file)), name=name, step=step)

    def finish(self, status: str) -> None:
        if self._run is not None:
            self._run["status"] = status
            self._run.close()
            self._run = None


def _aim_address(server: str) -> str:
    parts = urlsplit(server)
    return f"aim://{parts.netloc}{parts.path}" if parts.port else f"aim://{parts.hostname}:53800"
