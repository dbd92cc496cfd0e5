"""Makes the checkpoints that a release promises to resume from: ``python -m tests.old_checkpoints.make [KIND ...]``.

They go below ``tests/old_checkpoints/<version>/<kind>/``: ``run/`` holds what a run that was stopped leaves behind,
``expected.json`` what the uninterrupted run logged, ``expected.safetensors`` the weights that it ended in. Run it on
the commit that is released, before anything else changes. A new kind gets a function in ``kinds.py`` or ``doors.py``;
one that is there stays as it is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.old_checkpoints.doors import DOORS
from tests.old_checkpoints.kinds import KINDS, RUN, Ended, Kind
from trainwright import __version__

HOME = Path(__file__).parent
ROOT = HOME.parents[1]
ALL: dict[str, Kind] = {**KINDS, **DOORS}
#: Stands in the kept files for the folder that a run was made in, and will be resumed in.
FOLDER = "@FOLDER@"
#: What one of several processes is asked to do.
START, RESUME = "worker:start", "worker:resume"


def trained(name: str, *, resume: bool) -> Ended:
    """How the run of this kind ends, alone in this process; works in the current folder."""
    torch.manual_seed(0)
    return ALL[name].train(resume)


def trained_by_several(names: list[str], processes: int, *, resume: bool) -> dict[str, Ended]:
    """How runs of these kinds end, by so many processes, one run after the other; each in a folder of its name."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += ["-m", "tests.old_checkpoints.make", RESUME if resume else START, *names]
    paths = [path for path in (os.environ.get("PYTHONPATH"), str(ROOT)) if path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-5000:])
    return {name: read(Path(name)) for name in names}


def write(folder: Path, end: Ended) -> None:
    save_file({name: t.contiguous() for name, t in end.weights.items()}, folder / "expected.safetensors")
    (folder / "expected.json").write_text(json.dumps(end.logged, indent=1) + "\n")


def read(folder: Path) -> Ended:
    return Ended(load_file(folder / "expected.safetensors"), json.loads((folder / "expected.json").read_text()))


def put_back(kept: Path, place: Path) -> None:
    """The run that was kept, in ``place``, as if it had been stopped there."""
    place.mkdir(exist_ok=True)
    shutil.copytree(kept / "run", place / RUN)
    for path in (place / RUN).glob("*.*"):
        if path.is_file():
            path.write_text(path.read_text().replace(FOLDER, str(place)))


def make(name: str) -> None:
    kind, target = ALL[name], HOME / __version__ / name
    shutil.rmtree(target, ignore_errors=True)
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        place = Path(folder)
        try:
            if kind.processes == 1:
                end = trained(name, resume=False)
            else:
                place /= name
                end = trained_by_several([name], kind.processes, resume=False)[name]
            if kind.cut is not None:
                shutil.rmtree(RUN)
                kind.cut()
            _keep(kind, place, target)
            write(target, end)
        finally:
            os.chdir(before)
    print(f"{target.relative_to(ROOT)}: {sum(p.stat().st_size for p in target.rglob('*') if p.is_file())} bytes")


def _keep(kind: Kind, place: Path, target: Path) -> None:
    for part in kind.keep:
        source, copy = place / RUN / part, target / "run" / part
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy)
        elif source.suffix == ".safetensors":
            shutil.copy(source, copy)
        else:
            copy.write_text(source.read_text().replace(str(place), FOLDER))


def _work(names: tuple[str, ...], *, resume: bool) -> None:
    """In one of several processes."""
    home = Path.cwd()
    for name in names:
        place = home / name
        place.mkdir(exist_ok=True)
        os.chdir(place)
        end = trained(name, resume=resume)
        if os.environ["RANK"] == "0":
            write(place, end)
    torch.distributed.destroy_process_group()


def main(*words: str) -> None:
    torch.set_num_threads(1)
    if words[:1] in ((START,), (RESUME,)):
        _work(words[1:], resume=words[0] == RESUME)
        return
    for name in words or ALL:
        make(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
