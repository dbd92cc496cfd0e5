"""Whether this code computes, to the last bit, what a commit does: ``python -m tests.old_checkpoints.bits [COMMIT]``.

The package of that commit (the one in ``previous_release`` if none is named) is unpacked beside this one, every kind of
run is trained with both, in processes of their own, from the start and from the kept checkpoint, and losses and
weights are compared.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import torch

from tests.old_checkpoints.make import ALL, HOME, ROOT, put_back, read, trained, trained_by_several, write

PREVIOUS = (HOME / "previous_release").read_text(encoding="utf-8").split()[0]
#: What a process of its own is asked to do.
TRAIN = "train"


def unpack(commit: str, place: Path) -> None:
    """The package as it was in ``commit``, below ``place``."""
    command = ["git", "-C", str(ROOT), "archive", commit, "trainwright"]
    packed = subprocess.run(command, capture_output=True, check=False)
    if packed.returncode:
        raise ValueError(f"git does not know commit {commit} here ({packed.stderr.decode().strip()}): fetch it.")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(place, filter="data")


def train_all(results: Path) -> None:
    """Every kind, from the start and from what was kept; in this process, but for those that take several."""
    torch.set_num_threads(1)
    several = [name for name, kind in ALL.items() if kind.processes > 1]
    for resume in (False, True):
        for name in (name for name in ALL if name not in several):
            place = results / f"{name}-{'resumed' if resume else 'whole'}"
            _enter(place, name, resume=resume)
            write(place, trained(name, resume=resume))
        home = results / f"several-{'resumed' if resume else 'whole'}"
        for name in several:
            _enter(home / name, name, resume=resume)
        os.chdir(home)
        trained_by_several(several, 2, resume=resume)


def _enter(place: Path, name: str, *, resume: bool) -> None:
    place.mkdir(parents=True)
    if resume:
        put_back(HOME / "0.1.0" / name, place)
    os.chdir(place)


def compare(one: Path, other: Path) -> list[str]:
    """Where two sets of results differ, in words; nothing where they are the same bits."""
    found = []
    for path in sorted(one.rglob("expected.json")):
        name = path.parent.relative_to(one)
        here, there = read(one / name), read(other / name)
        if here.logged != there.logged:
            found.append(f"{name}: what was logged differs")
        if here.weights.keys() != there.weights.keys():
            found.append(f"{name}: other weights are there")
            continue
        apart = [key for key, tensor in here.weights.items() if not _same_bits(tensor, there.weights[key])]
        if apart:
            found.append(f"{name}: {', '.join(apart)} differ")
    return found


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(_bytes(one), _bytes(other))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).contiguous().view(torch.uint8)


def differences(commit: str) -> list[str]:
    """What this commit computes differently from ``commit``."""
    place = Path(tempfile.mkdtemp(prefix="trainwright-bits-"))
    try:
        unpack(commit, place / "package")
        processes = []
        for name, package in (("now", ROOT), ("then", place / "package")):
            environment = {**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-P", "-m", "tests.old_checkpoints.bits", TRAIN, str(place / name)]
            with (place / f"{name}.log").open("w") as log:
                processes.append(subprocess.Popen(command, env=environment, cwd=place, stdout=log, stderr=log))
        codes = [process.wait() for process in processes]
        if any(codes):
            logs = [(place / f"{name}.log").read_text()[-3000:] for name in ("now", "then")]
            raise RuntimeError("\n".join(logs))
        return compare(place / "now", place / "then")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def main(*words: str) -> None:
    if words[:1] == (TRAIN,):
        train_all(Path(words[1]))
        return
    commit = words[0] if words else PREVIOUS
    found = differences(commit)
    print("\n".join(found) if found else f"Every loss and weight is the same as with {commit}, to the last bit.")
    sys.exit(bool(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
