"""Scripts of other libraries, on transformers' loop or with ours underneath, in processes of their own."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "scripts"
#: What no two runs have in common.
CLOCK = ("runtime", "per_sec", "time")
#: Libraries that were written for an older TRL than the one we try: it lies in a folder of the environment (Makefile).
OWN_TRL = ("axolotl", "llamafactory")


@dataclass(frozen=True)
class Case:
    """One training: a script, what it is to do, and arguments that are otherwise."""

    script: str
    name: str
    arguments: tuple[tuple[str, Any], ...] = ()

    @property
    def id(self) -> str:
        return f"{self.script}-{self.name}"


@dataclass(frozen=True)
class Ran:
    """How a training ended: what it logged without times, and its weights, bit by bit."""

    log: list[dict[str, float]]
    weights: str
    kinds: list[str]

    def differences(self, other: Ran, relative: float = 1e-5) -> list[str]:
        """What is in one log and not in the other, or further apart than ``relative``."""
        found = [] if len(self.log) == len(other.log) else [f"{len(self.log)} and {len(other.log)} entries"]
        for mine, theirs in zip(self.log, other.log, strict=False):
            if mine.keys() != theirs.keys():
                found.append(f"step {mine.get('step')}: {sorted(mine.keys() ^ theirs.keys())} in one log only")
            for name in mine.keys() & theirs.keys():
                if not math.isclose(mine[name], theirs[name], rel_tol=relative, abs_tol=1e-7):
                    found.append(f"step {mine.get('step')}: {name} {mine[name]} and {theirs[name]}")
        return found


def command(case: Case, output: Path, *, underneath: bool, processes: int = 1, resume: Path | None = None) -> list[str]:
    """What starts ``case``: with `trainwright run` before it, or not."""
    words = [
        str(SCRIPTS / f"{case.script}_script.py"),
        case.name,
        str(output),
        "--set",
        json.dumps(dict(case.arguments)),
    ]
    if resume is not None:
        words += ["--resume", str(resume)]
    if processes > 1:
        words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *words]
    return [sys.executable, *(["-m", "trainwright", "run"] if underneath else []), *words]


def run(case: Case, output: Path, *, underneath: bool = True, processes: int = 1, resume: Path | None = None) -> Ran:
    """Train to the end, and read what came out."""
    words = command(case, output, underneath=underneath, processes=processes, resume=resume)
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=170, env=_environment(case))
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((output / "record.json").read_text())
    log = [{k: v for k, v in entry.items() if not any(word in k for word in CLOCK)} for entry in found["log"]]
    return Ran(log, found["weights"], found["kinds"])


def stop(case: Case, output: Path, with_signal: signal.Signals, after: str) -> int:
    """Begin to train, send a signal once the folder ``after`` is there, and return the exit code."""
    words = command(case, output, underneath=True)
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_environment(case))
    end = time.monotonic() + 120
    while not (output / after).exists():
        assert process.poll() is None, "it ended before it was stopped"
        assert time.monotonic() < end, f"{after} never came"
        time.sleep(0.002)
    process.send_signal(with_signal)
    return process.wait(60)


def _environment(case: Case) -> dict[str, str]:
    found = os.environ | {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }
    if case.script in OWN_TRL:
        found["PYTHONPATH"] = str(Path(sys.prefix) / f"with-{case.script}")
    return found
