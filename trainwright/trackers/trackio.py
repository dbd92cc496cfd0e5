"""Trackio, in a local folder, in a Space or on a server of one's own; its package runs in a process apart."""

from __future__ import annotations

import os
import sys
from pathlib import Path, PurePath
from typing import Any, Literal

from trainwright.config.warnings import warn
from trainwright.core.tracker import Histogram, TrackedRun
from trainwright.trackers import trackio_process
from trainwright.trackers.apart import Apart
from trainwright.trackers.naming import tagged
from trainwright.trackers.packages import require
from trainwright.trackers.pictures import picture_file

_SPACE = "TRACKIO_SPACE_ID"


class TrackioTracker:
    """Writes into ``folder``; look at it with ``TRACKIO_DIR=folder trackio show --project trainwright``.

    ``space_id`` is a Space that shows the run while it goes on, with its data in ``bucket_id``; ``server`` is the
    address of a server of one's own (``TRACKIO_WRITE_TOKEN``). When training is done, ``static_space_id`` becomes a
    public Space that shows what there is then. A run that the script opened itself (``trackio.init``) is used and left
    open.
    """

    def __init__(
        self,
        *,
        folder: str | Path | None = None,
        server: str | None = None,
        project: str | None = None,
        group: str | None = None,
        space_id: str | None = None,
        bucket_id: str | None = None,
        static_space_id: str | Literal[False] | None = None,
        private: bool | None = None,
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        self.server, self.project, self.group = server, project, group
        self.space_id, self.bucket_id, self.private = space_id, bucket_id, private
        self.static_space_id = static_space_id or None
        self._check()
        self._process: Apart | None = None
        self._script_run: Any = None
        self._beginning: dict[str, Any] = {}
        self._variables: dict[str, str] = {}
        self._told: tuple[str, str] | None = None

    def _check(self) -> None:
        if self.static_space_id is True:
            raise ValueError("trackio: static_space_id is the name of a Space, or False for none.")
        on_hub = {"space_id": self.space_id, "bucket_id": self.bucket_id, "static_space_id": self.static_space_id}
        given = [name for name, value in on_hub.items() if value is not None]
        if self.server and given:
            raise ValueError(f"trackio: the server {self.server} and {' and '.join(given)} are two places: keep one.")
        if self.server and "write_token=" in self.server:
            raise ValueError("trackio: leave write_token out of the server's address, and set TRACKIO_WRITE_TOKEN.")
        if self.static_space_id and self.private:
            raise ValueError(
                f"trackio: the static Space {self.static_space_id} would be public: leave it out, or private=True "
                "(hub_private_repo); a live Space (space_id) can be private."
            )
        if self.bucket_id and not (self.static_space_id or self.space_id or os.environ.get(_SPACE)):
            warn("trackio: the bucket has no effect without a Space: set space_id (trackio_space_id) too.")

    def start(self, run: TrackedRun) -> str | None:
        require("trackio", "trackio")
        config = {**run.config, "tags": list(run.tags), "env": run.facts}
        # The package keeps names that begin so for itself.
        config = {name.lstrip("_"): value for name, value in config.items()}
        self._script_run = _opened_by_the_script()
        if self._script_run is not None:
            self._script_run.config.update(config)
            return self._script_run.id
        folder = (self.folder or Path(os.environ.get("TRACKIO_DIR") or run.folder / "trackio")).absolute()
        self._variables = self._environment(folder)
        space = self.space_id or self._variables.get(_SPACE)
        self._beginning = {
            "folder": str(folder),
            "needs_account": bool(space or self.static_space_id),
            "earlier_id": run.earlier_id,
            "project": self.project or run.project,
            "name": _path_like(run.name or "") or run.folder.absolute().name,
            "group": self.group,
            "space_id": self.space_id,
            "server_url": self.server,
            "bucket_id": self.bucket_id if space else None,
            "private": self.private,
            "config": config,
        }
        return self._begin()

    def _environment(self, folder: Path) -> dict[str, str]:
        found = {**os.environ, "TRACKIO_DIR": str(folder)}
        if self.server:
            # The package would take the Space.
            found.pop(_SPACE, None)
        if not (self.space_id or self.static_space_id or found.get(_SPACE)):
            # With an account on this machine the package would ask the Hub for its name.
            found["HF_HUB_OFFLINE"] = "1"
        return found

    def _begin(self) -> str:
        process = Apart("Trackio", Path(trackio_process.__file__), self._variables)
        try:
            known = process.ask("start", **self._beginning)
        except BaseException:
            process.stop()
            raise
        self._process, self._beginning["earlier_id"] = process, known
        return known

    def _running(self) -> Apart:
        if self._process is None or not self._process.is_running:
            # It was ended from outside: the same run goes on in another.
            self._begin()
        assert self._process is not None
        return self._process

    def _ask(self, verb: str, **values: object) -> None:
        if self._script_run is not None:
            trackio_process.CALLS[verb](self._script_run, **values)
        else:
            self._running().ask(verb, **values)

    def log(self, values: dict[str, float], step: int) -> None:
        self._ask("log", values=tagged(values), step=step)

    def log_artifact(self, path: Path, name: str | None = None) -> None:
        self._ask("log_artifact", path=str(path.absolute()), name=name or path.name)

    def log_image(self, name: str, image: object, step: int) -> None:
        with picture_file(image) as file:
            self._ask("log_image", name=name, file=str(file.absolute()), step=step)

    def log_histogram(self, name: str, histogram: Histogram, step: int) -> None:
        self._ask("log_histogram", name=name, counts=histogram.counts, edges=histogram.edges(), step=step)

    def log_text(self, name: str, text: str, step: int) -> None:
        self._ask("log_text", name=name, text=text, step=step)

    def finish(self, status: str) -> None:
        if self._script_run is not None or self._process is None:
            self._script_run = None
            return
        # Opened again for a file after training, it need not say the same twice.
        told = (self._beginning["earlier_id"], status)
        process, self._process = self._running(), None
        try:
            process.ask(
                "finish",
                status=None if told == self._told else status,
                static_space_id=self.static_space_id if status == "done" else None,
                bucket_id=self.bucket_id,
            )
            self._told = told
        finally:
            process.stop()


def _opened_by_the_script() -> Any:
    """The run of ``trackio.init``, where the script called it."""
    trackio = sys.modules.get("trackio")
    return None if trackio is None else trackio.context_vars.current_run.get()


def _path_like(name: str) -> str:
    """A name that stays below a folder: the package keeps pictures in one that is called so.

    >>> _path_like("/data/run"), _path_like("../sweep/3"), _path_like("mine")
    ('data/run', 'sweep/3', 'mine')
    """
    return "/".join(part for part in PurePath(name).parts if part not in ("/", ".."))
