"""What a recipe costs in a step on a GPU: the same Llama with and without masks, a teacher, fake quantization.

python bench/recipes_gpu.py
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import statistics
import tempfile
import time
import warnings
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from trainwright import Trainer, TrainerCallback, TrainingArguments

STEPS, WARM = 60, 20
MASKS = """
pruning_modifiers:
  - !MagnitudePruningModifier
      {params: ["re:model.layers.*weight"], init_sparsity: 0.5, final_sparsity: 0.5, start_epoch: 0, end_epoch: 0.0001}
"""
TEACHER = "distillation_modifiers:\n  - !DistillationModifier {hardness: 0.5}\n"
EIGHT_BITS = (
    "quantization_modifiers:\n  - !QuantizationModifier {start_epoch: 0, scheme: W8A8, ignore: [lm_head, Embedding]}\n"
)
CASES = {"no recipe": None, "masks on all layers": MASKS, "a teacher of the same size": TEACHER, "int8 QAT": EIGHT_BITS}


class Clock(TrainerCallback):
    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= WARM:
            torch.cuda.synchronize()
            self.times.append(time.perf_counter())


def llama() -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32000, num_attention_heads=12, **sizes))


def measure(recipe: str | None, *, compiled: bool) -> tuple[float, float]:
    """(milliseconds a step, gigabytes at the peak)."""
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32000, (64, 1024))]
    clock = Clock()
    torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        args = TrainingArguments(
            folder,
            max_steps=STEPS,
            per_device_train_batch_size=16,
            bf16=True,
            torch_compile=compiled,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        teacher = "self" if recipe == TEACHER else None
        Trainer(llama(), args, train_dataset=rows, recipe=recipe, teacher=teacher, callbacks=[clock]).train()
    steps = [1000 * (b - a) for a, b in zip(clock.times, clock.times[1:], strict=False)]
    return statistics.median(steps), torch.cuda.max_memory_allocated() / 1e9


def main() -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("trainwright").setLevel(logging.ERROR)
    print("| 124M-parameter Llama, bf16, 16 x 1024 tokens | ms a step | ratio | peak GB |\n|---|---|---|---|")
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiled-only", action="store_true")
    for compiled in (True,) if parser.parse_args().compiled_only else (False, True):
        base = None
        for name, recipe in CASES.items():
            step, peak = measure(recipe, compiled=compiled)
            base = base or step
            print(
                f"| {name}{', compiled' if compiled else ''} | {step:.1f} | {step / base:.2f} | {peak:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
