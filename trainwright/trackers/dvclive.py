"""DVCLive: plain files that DVC and its editor extension show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from trainwright.core.tracker import TrackedRun
from trainwright.trackers.files import copy
from trainwright.trackers.naming import tagged
from trainwright.trackers.packages import package
from trainwright.trackers.pictures import file_name, picture_bytes


class DvcliveTracker:
    """Writes ``metrics.json``, ``params.yaml`` and ``plots/`` into ``folder``; no git or DVC repository is needed.

    ``save_dvc_exp=True`` and ``dvcyaml="dvc.yaml"`` make it a DVC experiment, where there is a repository.
    """

    def __init__(
        self,
        *,
        folder: str | Path | None = None,
        report: str | None = None,
        save_dvc_exp: bool = False,
        dvcyaml: str | None = None,
        exp_message: str | None = None,
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        self._options = {"report": report, "save_dvc_exp": save_dvc_exp, "dvcyaml": dvcyaml, "exp_message": exp_message}
        self._live: Any = None

    def start(self, run: TrackedRun) -> None:
        folder = self.folder or run.folder / "dvclive"
        name = run.name if self._options["save_dvc_exp"] else None
        live = package("dvclive", "dvclive").Live
        for file in ("metrics.json", "params.yaml"):
            _discard_damaged(folder / file)
        if not self._options["save_dvc_exp"]:
            live = _outside_repositories(live)
        self._live = live(dir=str(folder), resume=run.step > 0, exp_name=name, **self._options)
        about = {"run_name": run.name, "project": run.project, "tags": list(run.tags)}
        self._live.log_params({**run.config, **about})
        (folder / "env.json").write_text(json.dumps(run.facts, indent=2, default=str) + "\n", encoding="utf-8")

    def log(self, values: dict[str, float], step: int) -> None:
        self._live.step = step
        for tag, value in tagged(values).items():
            self._live.log_metric(tag, value)
        self._live.make_summary()

    def log_artifact(self, path: Path, name: str | None = None) -> None:
        copy(path, Path(self._live.dir) / "artifacts" / (name or path.name))

    def log_image(self, name: str, image: object, step: int) -> None:
        # The package's own call keeps one picture of a name; a file of its own for each step keeps them all.
        folder = Path(self._live.plots_dir) / "images"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file_name(name, step)).write_bytes(picture_bytes(image))

    def finish(self, status: str) -> None:
        if self._live is not None:
            self._live.summary["status"] = status
            self._live.end()
            self._live = None


def _discard_damaged(file: Path) -> None:
    """The package overwrites these in place, and cannot go on from one that a killed process left half written.

    Curves are in other files; these are written again with the next values.
    """
    try:
        # JSON is YAML.
        is_whole = isinstance(yaml.safe_load(file.read_text(encoding="utf-8")), dict)
    except FileNotFoundError:
        return
    except (ValueError, yaml.YAMLError):
        is_whole = False
    if not is_whole:
        file.unlink()


def _outside_repositories(live: object) -> Any:
    """The class without its first deed: in a git repository it would make one of DVC, and stage its files."""

    class Outside(live):  # type: ignore[misc, valid-type]
        def _init_dvc(self) -> None:
            self._dvc_file = self._init_dvc_file()

    return Outside
