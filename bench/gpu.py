"""Training on one GPU with default arguments: tokens per second, memory, seconds to the first step.

    python bench/gpu.py                                  every row, trainwright with default arguments
    python bench/gpu.py 124M 1.2B --acceleration off     the same without acceleration
    python bench/gpu.py 1.2B --deterministic             with full_determinism=True
    python bench/gpu.py 8B-lora --memory-budget 0.5      with less kept for the backward pass
    python bench/gpu.py 124M --library transformers      another library's Trainer
    python bench/gpu.py 124M --library transformers --compile

bf16 autocast, random tokens and weights, batches of equal length. Each row runs in a process of its own, three times
unless ``--rounds`` says otherwise; medians. MFU counts 6 operations a parameter and token (4 where only adapters are
trained) and causal attention, against 989 TFLOP/s of an H100 or H200.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

PEAK = 989e12
#: Steps that a run is said to have; it is stopped after those that are measured.
STEPS_OF_THE_RUN = 2000


class Row:
    def __init__(self, *, batch: int, length: int, steps: int, lora: bool = False, **config: int) -> None:
        self.batch, self.length, self.steps, self.lora, self.config = batch, length, steps, lora, config


ROWS = {
    "1M": Row(
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=1024,
        batch=8,
        length=128,
        steps=400,
    ),
    "124M": Row(
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        vocab_size=50304,
        batch=32,
        length=1024,
        steps=60,
    ),
    "1.2B": Row(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_attention_heads=32,
        vocab_size=32000,
        batch=8,
        length=2048,
        steps=40,
    ),
    "8B-lora": Row(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        batch=4,
        length=4096,
        steps=16,
        lora=True,
    ),
}


def build(row: Row) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    options: dict[str, Any] = {"num_key_value_heads": row.config["num_attention_heads"], **row.config}
    config = LlamaConfig(max_position_embeddings=8192, use_cache=False, tie_word_embeddings=False, **options)
    torch.set_default_dtype(torch.bfloat16 if row.lora else torch.float32)
    with torch.device("cuda"):
        model: Any = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    if row.lora:
        from peft import LoraConfig, get_peft_model

        layers = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules=layers))
    return model


def operations(row: Row, model: Any) -> float:
    """Floating-point operations of one step."""
    parameters = sum(one.numel() for one in model.parameters())
    embedding = row.config["hidden_size"] * row.config["vocab_size"]
    tokens, passes = row.batch * row.length, 2 if row.lora else 3
    attention = 2 * row.config["num_hidden_layers"] * row.length * row.config["hidden_size"] * tokens
    return passes * 2 * (parameters - embedding) * tokens + 3 * attention


def measure(name: str, library: str, given: argparse.Namespace) -> dict[str, Any]:
    """One training in this process."""
    import torch

    row = ROWS[name]
    trainers: Any = importlib.import_module(library)
    model = build(row)
    torch.cuda.reset_peak_memory_stats()
    rows = row.batch * 8
    ids = torch.randint(0, row.config["vocab_size"], (rows, row.length), generator=torch.Generator().manual_seed(0))
    times: dict[str, float] = {}
    warm = max(6, row.steps // 4)

    class Clock(trainers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step in (1, warm, row.steps):
                torch.cuda.synchronize()
                times[str(state.global_step)] = time.perf_counter()
            if state.global_step == 20:
                times["compiled"] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            control.should_training_stop = state.global_step >= row.steps

    options: dict[str, Any] = {} if given.acceleration is None else {"acceleration": given.acceleration}
    if given.compile:
        options["torch_compile"] = True
    if given.memory_budget is not None:
        options["memory_budget"] = given.memory_budget
    if given.deterministic:
        options["full_determinism"] = True
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        args = trainers.TrainingArguments(
            folder,
            per_device_train_batch_size=row.batch,
            max_steps=STEPS_OF_THE_RUN,
            bf16=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **options,
        )
        data = [{"input_ids": one, "labels": one} for one in ids]
        trainer = trainers.Trainer(model, args, train_dataset=data, callbacks=[Clock()])
        start = time.perf_counter()
        trainer.train()
    seconds = (times[str(row.steps)] - times[str(warm)]) / (row.steps - warm)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return {
        "tokens/s": row.batch * row.length / seconds,
        "ms": 1e3 * seconds,
        "MFU": operations(row, model) / seconds / PEAK,
        "GB": torch.cuda.max_memory_allocated() / 1e9,
        "first step": times["1"] - start,
        "compiled after step 20": graphs - times.get("compiled", graphs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", default=list(ROWS))
    parser.add_argument("--library", default="trainwright", choices=["trainwright", "transformers"])
    parser.add_argument("--acceleration")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--memory-budget", type=float)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        logging.basicConfig(level=logging.INFO)
        found = measure(given.rows[0], given.library, given)
        print("RESULT " + json.dumps(found))
        return
    for row in given.rows:
        results = [found for _ in range(given.rounds) if (found := _in_a_process(row, sys.argv[1:])) is not None]
        if not results:
            continue
        middle = {key: statistics.median(one[key] for one in results) for key in results[0]}
        print(
            f"{row:8} {middle['tokens/s']:>10,.0f} tokens/s {middle['ms']:8.2f} ms a step  MFU {middle['MFU']:.1%}  "
            f"{middle['GB']:.1f} GB  first step {results[0]['first step']:.1f} s, "
            f"then {results[-1]['first step']:.1f} s  "
            f"{middle['compiled after step 20']:.0f} compilations after step 20",
            flush=True,
        )


def _in_a_process(row: str, arguments: list[str]) -> dict[str, Any] | None:
    options = [one for one in arguments if one not in ROWS]
    done = subprocess.run(
        [sys.executable, __file__, row, "--one", *options], capture_output=True, text=True, check=False
    )
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("RESULT "):
            for said in done.stderr.splitlines():
                if "Faster than plain" in said or "accelerated" in said:
                    print("   ", said, flush=True)
            return json.loads(line.removeprefix("RESULT "))
    print(f"{row}: failed: {done.stderr.strip().splitlines()[-1:] or done.returncode}", flush=True)
    return None


if __name__ == "__main__":
    main()
