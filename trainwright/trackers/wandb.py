"""Weights & Biases. Its package talks to a process of its own, so ``log`` never waits for the network."""

from __future__ import annotations

import html
import netrc
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trainwright.core.tracker import Histogram, TrackedRun
from trainwright.trackers.naming import tagged
from trainwright.trackers.packages import environment, only_errors, package
from trainwright.trackers.pictures import picture_file

_STEP = "train/global_step"


class WandbTracker:
    """Online where there is an account (``WANDB_API_KEY``, ``wandb login``), else offline in ``folder/wandb``.

    ``wandb sync`` uploads what was written offline. A run that the script opened itself (``wandb.init``) is used and
    left open. ``settings`` go to ``wandb.Settings``.
    """

    def __init__(
        self,
        *,
        folder: str | Path | None = None,
        server: str | None = None,
        project: str | None = None,
        entity: str | None = None,
        group: str | None = None,
        job_type: str | None = None,
        notes: str | None = None,
        mode: str | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        self.server, self.project, self.mode = server, project, mode
        self._about = {"entity": entity, "group": group, "job_type": job_type, "notes": notes}
        self._settings = settings or {}
        self._run: Any = None
        self._is_ours = True

    def start(self, run: TrackedRun) -> str | None:
        # The commit is in our facts; the package would run git as the repository configures it.
        with environment(WANDB_DISABLE_GIT="true"):
            wandb = package("wandb", "wandb")
        self._is_ours = wandb.run is None
        config = {**run.config, "env": run.facts}
        if not self._is_ours:
            self._run = wandb.run
            self._run.config.update(config, allow_val_change=True)
            self._run.tags = (*(self._run.tags or ()), *run.tags)
        else:
            self._run = self._open(wandb, run, config)
        # An axis of our own: the package's would refuse a step that comes again after a resume.
        self._run.define_metric(_STEP)
        self._run.define_metric("*", step_metric=_STEP, step_sync=True)
        return self._run.id

    def _open(self, wandb: Any, run: TrackedRun, config: dict[str, Any]) -> Any:
        # The package makes a folder wandb in it.
        folder = self.folder or run.folder
        folder.mkdir(parents=True, exist_ok=True)
        server = {"base_url": self.server} if self.server else {}
        mode = self.mode or os.environ.get("WANDB_MODE") or ("online" if self._has_account() else "offline")
        if self.server and mode == "offline" and self.mode is None:
            raise ValueError(f"report_to='wandb' with the server {self.server} needs WANDB_API_KEY, or `wandb login`.")
        return wandb.init(
            project=self.project or os.environ.get("WANDB_PROJECT") or run.project,
            name=run.name,
            tags=run.tags,
            config=config,
            dir=str(folder),
            mode=mode,
            id=run.earlier_id,
            resume="allow" if run.earlier_id and mode == "online" else None,
            # The package would wrap stdout and stderr of the whole process, and note the command line with its secrets.
            settings=wandb.Settings(
                **{
                    "console": "off",
                    "x_disable_meta": True,
                    "disable_git": True,
                    "silent": only_errors(),
                    **server,
                    **self._settings,
                }
            ),
            **{name: value for name, value in self._about.items() if value is not None},
        )

    def _has_account(self) -> bool:
        if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
            return True
        host = urlsplit(self.server or os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname
        for file in (os.environ.get("NETRC"), "~/.netrc", "~/_netrc"):
            try:
                if file and host and netrc.netrc(os.path.expanduser(file)).authenticators(host):
                    return True
            except (OSError, netrc.NetrcParseError):
                continue
        return False

    def log(self, values: dict[str, float], step: int) -> None:
        self._run.log({**tagged(values), _STEP: step})

    def log_artifact(self, path: Path, name: str | None = None) -> None:
        wandb = package("wandb", "wandb")
        artifact = wandb.Artifact(_artifact_name(name or path.name), type="file")
        (artifact.add_dir if path.is_dir() else artifact.add_file)(str(path))
        self._run.log_artifact(artifact)

    def log_image(self, name: str, image: object, step: int) -> None:
        wandb = package("wandb", "wandb")
        with picture_file(image) as file:
            self._run.log({name: wandb.Image(str(file)), _STEP: step})

    def log_histogram(self, name: str, histogram: Histogram, step: int) -> None:
        wandb = package("wandb", "wandb")
        found = wandb.Histogram(np_histogram=(histogram.counts, histogram.edges()))
        self._run.log({name: found, _STEP: step})

    def log_text(self, name: str, text: str, step: int) -> None:
        wandb = package("wandb", "wandb")
        self._run.log({name: wandb.Html(f"<pre>{html.escape(text)}</pre>"), _STEP: step})

    def finish(self, status: str) -> None:
        if not self._is_ours or self._run is None:
            return
        if status == "stopped":
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if status == "done" else 1)
        self._run = None


def _artifact_name(name: str) -> str:
    """Only the characters that names of artifacts may have there."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
