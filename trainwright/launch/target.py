"""What is launched: an experiment, the folder of a run, or a script."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from trainwright.config.errors import ConfigError

_COUNT = "import torch; print(torch.accelerator.device_count() if torch.accelerator.is_available() else 0)"


def python_words(file: Path, words: Sequence[str]) -> list[str]:
    """What python is given to run ``file`` with its own ``words``.

    >>> python_words(Path("train.py"), ["--lr", "1"])
    ['train.py', '--lr', '1']
    >>> python_words(Path("houses.yaml"), ["training.seed=2"])
    ['-m', 'trainwright', 'train', 'houses.yaml', 'training.seed=2']
    """
    if file.suffix == ".py":
        return [str(file), *words]
    return ["-m", "trainwright", "resume" if file.is_dir() else "train", str(file), *words]


def process_count(wanted: str, *, cpu: bool) -> int:
    """``--nproc``: a number, or "auto" for one process on each GPU of this machine (one process where it has none).

    >>> process_count("4", cpu=False), process_count("auto", cpu=True)
    (4, 1)
    """
    if wanted == "auto":
        return 1 if cpu else max(1, _device_count())
    if not wanted.isdecimal() or int(wanted) < 1:
        raise ConfigError(f"--nproc {wanted}: give a number of processes, 1 or more, or auto (one on each GPU).")
    return int(wanted)


def _device_count() -> int:
    # Asked in another process: this one stays light, and a device that was looked at may be taken.
    # -P: a torch.py that happens to lie in this folder is not torch.
    asked = subprocess.run([sys.executable, "-P", "-c", _COUNT], capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        raise ConfigError(f"--nproc auto: the GPUs could not be counted; give a number. {asked.stderr.strip()[-300:]}")
    return int(asked.stdout)
