"""How long importing takes, as a multiple of importing torch.

    python bench/imports.py [--rounds 7]

Each import runs in a fresh interpreter; contenders take turns; medians.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

CODE = {
    "python alone": "pass",
    "import trainwright": "import trainwright",
    "trainwright --help": "import sys; sys.argv = ['trainwright', '--help']; from trainwright.cli import main; main()",
    "trainwright train --help": "import sys; sys.argv = ['trainwright', 'train', '--help']; "
    "from trainwright.cli import main; main()",
    "import torch": "import torch",
    "trainwright.Trainer": "import trainwright; trainwright.Trainer",
    "transformers.Trainer": "from transformers import Trainer",
    "lightning.pytorch": "import lightning.pytorch",
}


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    for code in CODE.values():
        seconds(code)  # fill the file cache
    times: dict[str, list[float]] = {name: [] for name in CODE}
    for _ in range(rounds):
        for name, code in CODE.items():
            times[name].append(seconds(code))
    torch = statistics.median(times["import torch"])
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:26}{median:8.2f} s{median / torch:8.2f} x torch")


if __name__ == "__main__":
    main()
