"""Large batches on their way to a GPU: copied beside what it computes, or in between.

    python bench/copying.py          images of 128 x 3 x 224 x 224, a convolutional network; medians of 3

Both ways take turns in processes of their own.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

STEPS, WARM, BATCH, LAYERS = 45, 12, 128, 40


def measure(beside: bool) -> float:
    """Milliseconds a step."""
    import torch
    from torch import nn

    from trainwright import Trainer, TrainerCallback, TrainingArguments
    from trainwright.engines.torch import copying

    if not beside:
        copying.WORTH_A_STREAM = 2**60
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, stride=2, padding=3), nn.ReLU()]
    for _ in range(LAYERS):
        layers += [nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()]
    torch.manual_seed(0)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

        def forward(self, pixels: Any, labels: Any) -> Any:
            logits = self.body(pixels)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    class Batches(torch.utils.data.Dataset[Any]):
        """Each sample is made of one tensor: data costs as little as it can."""

        pixels, labels = torch.randn(BATCH, 3, 224, 224), torch.arange(BATCH) % 10

        def __len__(self) -> int:
            return BATCH * STEPS

        def __getitem__(self, index: int) -> Any:
            return {"pixels": self.pixels[index % BATCH], "labels": self.labels[index % BATCH]}

    times: dict[int, float] = {}

    class Clock(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step in (WARM, STEPS):
                torch.cuda.synchronize()
                times[state.global_step] = time.perf_counter()

    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            per_device_train_batch_size=BATCH,
            max_steps=STEPS,
            bf16=True,
            dataloader_num_workers=4,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            write_report=False,
            acceleration="off",
        )
        Trainer(Network(), args, train_dataset=Batches(), callbacks=[Clock()]).train()
    return 1e3 * (times[STEPS] - times[WARM]) / (STEPS - WARM)


def main() -> None:
    if len(sys.argv) > 1:
        print("RESULT", measure(sys.argv[1] == "beside"))
        return
    found: dict[str, list[float]] = {"in between": [], "beside": []}
    for _ in range(3):
        for way, times in found.items():
            done = subprocess.run([sys.executable, __file__, way], capture_output=True, text=True, check=False)
            line = next((one for one in done.stdout.splitlines() if one.startswith("RESULT")), None)
            if line is None:
                sys.exit(f"{way}: {done.stderr[-800:]}")
            times.append(float(line.split()[1]))
    for way, times in found.items():
        print(f"{way:10} {statistics.median(times):.2f} ms a step ({', '.join(f'{one:.2f}' for one in times)})")


if __name__ == "__main__":
    main()
