"""One worker of a sweep, ``python -m trainwright.search.worker``: it reads from its input what to work on."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from pathlib import Path
from typing import Any

from trainwright.config.loading import Loaded, experiment_from
from trainwright.config.registry import import_file
from trainwright.config.yaml12 import Document
from trainwright.core.children import end_with_parent
from trainwright.core.stops import LeavesAtOnce
from trainwright.search.plan import Plan, read_plan, sweep_document
from trainwright.search.study import open_study


def main() -> None:
    """Take trials until none is left, or the process that began this one is gone."""
    # A sweep that was killed cannot tell its workers to stop.
    end_with_parent(signal.SIGTERM)
    description = json.load(sys.stdin)

    def work() -> None:
        # Here: sweep.py starts workers, and needs this module.
        from trainwright.search.sweep import work_on

        plan = plan_from(description)
        several = description if description["processes"] > 1 else None
        study = open_study(plan)
        work_on(plan, study, threads=description["threads"], say=_say, description=several)

    LeavesAtOnce(lambda reason: print(f"Stopped by {reason}.", file=sys.stderr)).do(work)


def _say(line: str) -> None:
    print(line, flush=True)


def description_of(loaded: Loaded, folder: Path, threads: int, processes: int, imports: list[str]) -> dict[str, Any]:
    """Everything that another process needs to work on the same sweep, as plain data."""
    return {
        "experiment": sweep_document(loaded),
        "source": loaded.document.source,
        "base": str(loaded.folder.absolute()),
        "folder": str(folder.absolute()),
        "threads": threads,
        "processes": processes,
        "imports": imports,
    }


def plan_from(description: dict[str, Any]) -> Plan:
    """The plan in another process. Whatever code it names, whoever began the sweep has allowed."""
    for file in description["imports"]:
        import_file(file, "--import")
    document = Document(description["experiment"], description["source"])
    loaded = experiment_from(document, trust=True, folder=Path(description["base"]))
    return dataclasses.replace(read_plan(loaded), folder=Path(description["folder"]))


if __name__ == "__main__":
    main()
