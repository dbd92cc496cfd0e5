"""How long a report takes: of a run with 100,000 logged steps; and how long it takes to list 10,000 runs.

    python bench/report.py

The run is written here as a training writes it (a log line and a line of performance.jsonl a step, an evaluation every
hundred steps), then `trainwright report` is called as a user calls it, in a process of its own, several times.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def write_run(folder: Path, steps: int) -> None:
    """A run of ``steps`` logged steps, as it lies on disk."""
    folder.mkdir(parents=True)
    metrics, performance, length = [], [], 0.0
    for step in range(1, steps + 1):
        loss = 4 * math.exp(-step / steps * 3) + 0.2 * math.sin(step * 12.9898) ** 2
        now = 1.75e9 + step * 0.2
        line = {
            "step": step,
            "time": now,
            "loss": loss,
            "grad_norm": loss / 3,
            "learning_rate": 1e-4,
            "epoch": step / 1e4,
        }
        metrics.append(json.dumps(line))
        if step % 100 == 0:
            metrics.append(json.dumps({"step": step, "time": now, "eval_loss": loss, "eval_accuracy": 1 / (1 + loss)}))
        length += 0.2
        # As often as a training does: docs/run-directory.md.
        if length < step * 0.2 / 1000:
            continue
        speed = {
            "step": step,
            "time": now,
            "start": 1.75e9,
            "steps": round(length / 0.2),
            "seconds": {"train": length * 0.95, "data": length * 0.05, "save": length * 0.05},
            "steps_per_second": 5.1,
            "samples_per_second": 163.0,
            "tokens_per_second": 167_000.0,
            "flops_per_second": 1.2e14,
            "mfu": 0.41,
            "data_wait": 0.05,
            "memory": 17_000_000_000 + step,
            "memory_total": 150_000_000_000,
        }
        performance.append(json.dumps(speed))
        length = 0.0
    (folder / "metrics.jsonl").write_text("\n".join(metrics) + "\n")
    (folder / "performance.jsonl").write_text("\n".join(performance) + "\n")
    (folder / "run.json").write_text(json.dumps({"id": "0123abcd", "began": 1.75e9, "owns_unnamed": True}))
    (folder / "config.yaml").write_text(
        "learning_rate: 0.0001\nmetric_for_best_model: accuracy\ngreater_is_better: true\n"
    )


def write_many(folder: Path, runs: int) -> None:
    """Finished runs as they lie on disk, without checkpoints."""
    for number in range(runs):
        run = folder / f"run-{number:05}"
        run.mkdir(parents=True)
        lines = [json.dumps({"step": step, "loss": 1 / step, "eval_accuracy": 0.5}) for step in range(1, 40)]
        (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        (run / "events.jsonl").write_text(json.dumps({"kind": "saved", "time": 1.0, "message": "saved"}) + "\n")
        (run / "run.json").write_text(json.dumps({"id": f"{number:08x}", "began": 1.75e9, "owns_unnamed": True}))
        (run / "finished.json").write_text(json.dumps({"step": 40, "max_steps": 40, "time": 1.75e9}))
        (run / "config.yaml").write_text("learning_rate: 0.0001\nmetric_for_best_model: accuracy\n" * 20)
        (run / "trainer_state.json").write_text(json.dumps({"best_metric": 0.5, "global_step": 40}))


def seconds_of(words: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "trainwright", *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        run, many = Path(place) / "run", Path(place) / "many"
        write_run(run, options.steps)
        write_many(many, options.runs)
        words = {
            "a command that does nothing (env --help)": ["env", "--help"],
            f"report of {options.steps:,} logged steps": ["report", str(run)],
            f"runs, {options.runs:,} of them": ["runs", str(many)],
        }
        times: dict[str, list[float]] = {name: [] for name in words}
        for _ in range(options.repeats):
            for name, each in words.items():
                times[name].append(seconds_of(each))
        for name, found in times.items():
            print(f"{name:<45}{statistics.median(found):6.2f} s")
        print(f"report.html: {(run / 'report.html').stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
