"""What one process of a try has to do, handed over as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

THEIRS, OURS = "transformers", "trainwright"
OBSERVED, WEIGHTS, LOG = "observed.json", "weights.safetensors", "output.log"


@dataclass(frozen=True)
class Plan:
    """One run of the user's script under observation."""

    library: str
    script: str
    #: What follows the script on the command line.
    words: list[str]
    #: Everything that this run writes lies in it.
    folder: str
    steps: int
    #: Kill this process at about half of the steps, after a checkpoint.
    killed: bool = False
    #: The checkpoint to resume from.
    resume_from: str = ""
    #: A checkpoint of ours to export for transformers, and to resume from then.
    export_from: str = ""
    #: Find out why losses differ: dropout is off, and the model's own loss of each step is noted.
    probe: bool = False
    #: The same, with one batch a step.
    single: bool = False
    #: Let a GPU add in the same order each time, at the cost of speed: without it no two runs have the same bits.
    repeatable: bool = False
    #: Folders whose Python files are the user's.
    own_folders: list[str] = field(default_factory=list)

    @property
    def output_dir(self) -> Path:
        return Path(self.folder) / "output"

    def write(self) -> Path:
        """Write the plan where the process finds it."""
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "plan.json"
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    @classmethod
    def read(cls, path: Path) -> Plan:
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def save_every(steps: int) -> int:
    """Steps between two saves, so that one comes before the kill and one after it."""
    return max(1, steps * 2 // 5)


def kill_at(steps: int) -> int:
    """The step after which the process is killed; 0 where a run is too short for that."""
    return 0 if steps < 3 else max(save_every(steps) + 1, steps // 2)


def newest_checkpoint(output: Path) -> Path | None:
    """The newest ``checkpoint-N`` that is complete: both libraries write its ``trainer_state.json`` last, or rename."""
    found = [path for path in output.glob("checkpoint-*") if (path / "trainer_state.json").is_file()]
    steps = {path: path.name.partition("-")[2] for path in found}
    numbered = [path for path in found if steps[path].isdecimal()]
    return max(numbered, key=lambda path: int(steps[path]), default=None)
