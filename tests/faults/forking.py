"""Runs in forked processes of one that has imported everything once; prints what became of them as JSON.

python -m tests.faults.forking FOLDER '{"killed_workers": ["in forward"], "leaving": ["three times"]}'
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]


def outcomes(folder: Path, wanted: dict[str, list[str]]) -> dict[str, Any]:
    """What became of the wanted runs, by module and name; called by tests."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.forking", str(folder), json.dumps(wanted)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=170,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    from tests.faults import in_between, killed_sampler, killed_workers, leaving, one_writer

    torch.set_num_threads(1)
    folder, wanted = Path(sys.argv[1]), json.loads(sys.argv[2])
    answers: dict[str, Any] = {}
    if "killed_sampler" in wanted:
        answers["killed_sampler"] = killed_sampler.results(folder / "killed_sampler")
    if "killed_workers" in wanted:
        answers["killed_workers"] = killed_workers.results(folder / "killed_workers", wanted["killed_workers"])
    if "leaving" in wanted:
        answers["leaving"] = leaving.results(folder / "leaving", wanted["leaving"])
    if "in_between" in wanted:
        answers["in_between"] = in_between.results(folder / "in_between", wanted["in_between"])
    if "one_writer" in wanted:
        answers["one_writer"] = one_writer.results(folder / "one_writer", wanted["one_writer"])
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
