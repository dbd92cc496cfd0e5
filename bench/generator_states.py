"""What it costs to know, at every step, whether Python's or numpy's global generator was drawn from.

    python bench/generator_states.py [--rounds 8] [--steps 500]

The same tiny training with ``randomness/global_generators.py`` reading the generators' memory, and with
``random.getstate()`` and ``np.random.get_state(legacy=False)`` in its place; the ways take turns, and the median of the
ratios within a round is printed. "Python's alone" leaves numpy out, which is no way to do it, but says which of the two
costs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import logging
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.overhead import BATCH, MLP, Rows
from trainwright import Trainer, TrainerCallback, TrainingArguments
from trainwright.randomness.global_generators import GeneratorStates


def plain_capture(self: Any) -> Any:
    return random.getstate(), np.random.get_state(legacy=False)


def plain_moved_since(self: Any, states: Any) -> bool:
    python, array = states
    if random.getstate() != python:
        return True
    now: Any = np.random.get_state(legacy=False)
    is_same = now["state"]["pos"] == array["state"]["pos"] and now["has_gauss"] == array["has_gauss"]
    return not is_same or not np.array_equal(now["state"]["key"], array["state"]["key"])


WAYS: dict[str, tuple[Callable[..., Any], Callable[..., bool]]] = {
    "in memory": (GeneratorStates.capture, GeneratorStates.moved_since),
    "plain": (plain_capture, plain_moved_since),
    "Python's alone": (lambda self: random.getstate(), lambda self, state: random.getstate() != state),
}


def microseconds_a_step(steps: int, saves: bool) -> float:
    """CPU time of this thread, the median over the last three quarters of a run."""
    times: list[float] = []

    class Ticker(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            times.append(time.thread_time())

    saving: dict[str, Any] = {"save_steps": 10**6} if saves else {"save_strategy": "no"}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        args = TrainingArguments(
            folder,
            per_device_train_batch_size=BATCH,
            num_train_epochs=1,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            **saving,
        )
        Trainer(MLP(), args, train_dataset=Rows(steps), callbacks=[Ticker()]).train()
    settled = times[len(times) // 4 :]
    return statistics.median(after - before for before, after in itertools.pairwise(settled)) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    for saves in (True, False):
        found: dict[str, list[float]] = {name: [] for name in WAYS}
        # The first round warms up.
        for number in range(options.rounds + 1):
            for name, (capture, moved_since) in WAYS.items():
                GeneratorStates.capture, GeneratorStates.moved_since = capture, moved_since  # type: ignore[assignment]
                took = microseconds_a_step(options.steps, saves)
                if number:
                    found[name].append(took)
        print("a run that saves" if saves else "a run that never saves")
        for name, times in found.items():
            ratio = statistics.median(a / b for a, b in zip(times, found["in memory"], strict=True))
            print(f"  {name:<16}{statistics.median(times):7.1f} us a step {ratio:6.3f}")


if __name__ == "__main__":
    main()
