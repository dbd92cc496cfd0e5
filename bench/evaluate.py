"""Evaluating many samples x 1,000 classes: time should be linear and, with a streaming metric, memory flat.

    python bench/evaluate.py [--sizes 5000 10000 20000 40000]

Each run is a fresh process, so that its peak memory is its own; "grown" is the peak above what the process held before.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

CLASSES = 1000
WAYS = ("trainwright streaming", "trainwright", "transformers")


def run(way: str, size: int) -> dict[str, float]:
    """One evaluation in this process."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from torch import nn

    torch.set_num_threads(1)

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, CLASSES)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.layer(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    class Rows(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return size

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"x": torch.full((4,), index / size), "labels": torch.tensor(index % CLASSES)}

    metric: Any = lambda p: {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())}  # noqa: E731
    if way == "trainwright streaming":
        from torchmetrics.classification import MulticlassAccuracy

        metric = MulticlassAccuracy(CLASSES, average="micro")
    library = __import__("transformers" if way == "transformers" else "trainwright")
    with tempfile.TemporaryDirectory() as folder:
        args = library.TrainingArguments(
            folder, per_device_eval_batch_size=64, report_to="none", use_cpu=True, disable_tqdm=True
        )
        trainer = library.Trainer(Logits(), args, eval_dataset=Rows(), compute_metrics=metric)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        trainer.evaluate()
        seconds = time.perf_counter() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"seconds": seconds, "grown_mib": grown}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[5000, 10000, 20000, 40000])
    parser.add_argument("--one", nargs=2, metavar=("WAY", "SIZE"), help="run one case in this process and print JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run(options.one[0], int(options.one[1]))))
        return
    print(f"{'':24}" + "".join(f"{size:>18}" for size in options.sizes))
    for way in WAYS:
        cells = []
        for size in options.sizes:
            command = [sys.executable, __file__, "--one", way, str(size)]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            result = json.loads(output.strip().splitlines()[-1])
            cells.append(f"{result['seconds']:.2f} s {result['grown_mib']:.0f} MiB")
        print(f"{way:24}" + "".join(f"{cell:>18}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
