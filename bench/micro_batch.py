"""What it costs that batches fit: whole, cut by hand (accumulation), cut by number, and cut by what memory allows.

    python bench/micro_batch.py [--rounds 5] [--memory 12]

The contenders train the same Llama on the same batches, a few steps each, in turn; the median over the rounds of the
time of a step is printed, as a ratio to accumulation by hand with pieces of the same size. On a GPU, ``--memory`` is
the number of gigabytes that the process may use, so that a whole batch does not fit; there "auto" has to find a cut.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import statistics
import tempfile
import time
import warnings
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from trainwright import Trainer, TrainerCallback, TrainingArguments

STEPS, SKIPPED = 12, 4


class Clock(TrainerCallback):
    """Time of each step, and of everything before the first."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.made = time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.before = _now() - self.made

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.began = _now()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps.append(_now() - self.began)


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def model(large: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = (768, 2048, 12, 12, 32_000) if large else (128, 344, 2, 4, 1000)
    width, inner, layers, heads, words = sizes
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        vocab_size=words,
        max_position_embeddings=1024,
    )
    return LlamaForCausalLM(config)


def run(rows: list[Any], large: bool, batch: int, **more: Any) -> tuple[float, float, int]:
    """Median time of a step, time before the first, and samples that ran at once."""
    # What the last contender left: a Trainer and its callbacks know each other, so only the collector frees them.
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory() as folder:
        values: dict[str, Any] = {"per_device_train_batch_size": batch, "bf16": large, "max_steps": STEPS, **more}
        quiet: dict[str, Any] = {"save_strategy": "no", "disable_tqdm": True, "logging_steps": 10**6}
        args = TrainingArguments(folder, **quiet, **values)
        network, clock = model(large), Clock()
        trainer = Trainer(network, args, train_dataset=rows, callbacks=[clock])
        trainer.callback_handler.callbacks = [c for c in trainer.callback_handler.callbacks if "Printer" not in str(c)]
        clock.made = _now()
        trainer.train()
    return statistics.median(clock.steps[SKIPPED:]), clock.before, trainer.micro_batch_size


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=float, default=12)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    transformers_logging.set_verbosity_error()
    large = torch.cuda.is_available()
    batch, length = (64, 1024) if large else (16, 128)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 1000, (4 * batch, length), generator=generator)
    rows = [{"input_ids": row, "labels": row} for row in ids]
    if large:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(options.memory * 2**30 / total)
    piece = run(rows, large, batch, micro_batch="auto")[2] if large else batch // 4
    by_hand = {"per_device_train_batch_size": piece, "gradient_accumulation_steps": batch // piece}
    contenders: dict[str, dict[str, Any]] = {
        f"accumulation by hand, {batch // piece} x {piece}": by_hand,
        f"micro_batch={piece}": {"micro_batch": piece},
        'micro_batch="auto"': {"micro_batch": "auto"},
        f'a batch of {piece} that fits, micro_batch="auto", the same samples': {**by_hand, "micro_batch": "auto"},
    }
    times: dict[str, list[tuple[float, float, int]]] = {name: [] for name in contenders}
    for _ in range(options.rounds):
        for name, more in contenders.items():
            times[name].append(run(rows, large, batch, **more))
    reference = statistics.median(step for step, _, _ in next(iter(times.values())))
    print(f"{batch} x {length} tokens a step on {torch.cuda.get_device_name(0) if large else 'the CPU'}")
    for name, found in times.items():
        step = statistics.median(step for step, _, _ in found)
        before = statistics.median(before for _, before, _ in found)
        print(f"{name:70} {step * 1e3:9.1f} ms  {step / reference:5.3f}  before the first step {before:6.2f} s")


if __name__ == "__main__":
    main()
