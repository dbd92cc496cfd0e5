"""Estimated against real peak memory of a 1B Llama on one GPU.

    python bench/estimate_check.py [--json FILE] [--layers 16]

Trains 3 steps of each case in a process of its own, and compares what torch held at most in the last two with what
`trainwright.engines.torch.rehearsal` says beforehand. 4 x 1024 tokens, bf16, AdamW.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

ROWS, LENGTH, VOCABULARY = 4, 1024, 32000
CASES: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "one GPU": ("sp", False, {}),
    "one GPU, recomputing": ("sp", True, {"gradient_checkpointing": True}),
    "one GPU, plain AdamW": ("sp", False, {"optim": "adamw_torch"}),
    "one GPU, 2 micro-batches": ("sp", False, {"gradient_accumulation_steps": 2}),
    "FSDP": ("fsdp full_shard", False, {"fsdp": "full_shard"}),
    "FSDP, recomputing": (
        "fsdp full_shard",
        True,
        {"fsdp": "full_shard", "fsdp_config": {"activation_checkpointing": True}},
    ),
    "FSDP, shard_grad_op": ("fsdp shard_grad_op", False, {"fsdp": "shard_grad_op"}),
}


class Tokens(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = torch.randint(0, VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def build(layers: int, device: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device(device):
        return LlamaForCausalLM(
            LlamaConfig(
                hidden_size=2048,
                intermediate_size=8192,
                num_hidden_layers=layers,
                num_attention_heads=32,
                num_key_value_heads=8,
                vocab_size=VOCABULARY,
                max_position_embeddings=2048,
                use_cache=False,
            )
        )


def arguments(folder: str, options: dict[str, Any]) -> Any:
    from trainwright import TrainingArguments

    settings: dict[str, Any] = {
        "output_dir": folder,
        "per_device_train_batch_size": ROWS,
        "max_steps": 3,
        "bf16": True,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "optim": "adamw_torch_fused",
        "logging_steps": 1,
    }
    return TrainingArguments(**{**settings, **options})


def run_case(name: str, layers: int) -> dict[str, Any]:
    """Train, in this process."""
    from trainwright import Trainer, TrainerCallback

    class Peak(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            torch.cuda.synchronize()
            if state.global_step == 1:
                torch.cuda.reset_peak_memory_stats()

    options = CASES[name][2]
    with tempfile.TemporaryDirectory() as folder:
        args = arguments(folder, options)
        trainer = Trainer(model=build(layers, "cuda"), args=args, train_dataset=Tokens(), callbacks=[Peak()])
        trainer.train()
        torch.cuda.synchronize()
        return {
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
            "seconds": trainer.state.log_history[-1].get("train_runtime"),
        }


def estimated(name: str, layers: int) -> dict[str, Any]:
    from trainwright.engines.torch.rehearsal.estimate import estimate_memory

    strategy, recompute, options = CASES[name]
    options = {key: value for key, value in options.items() if key != "fsdp" and key != "fsdp_config"}
    ids = torch.zeros(ROWS, LENGTH, dtype=torch.long)
    with tempfile.TemporaryDirectory() as folder:
        found = estimate_memory(
            build(layers, "meta"),
            arguments(folder, options),
            {"input_ids": ids, "labels": ids},
            strategies=[strategy],
            recompute=[recompute],
        )[0]
    return {"allocated": found.allocated, "parts": found.parts, "besides": found.besides}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--case", help="one case, here and now, as JSON")
    parser.add_argument("--only-estimate", action="store_true")
    given = parser.parse_args()
    if given.case:
        print(json.dumps(run_case(given.case, given.layers)))
        return
    rows = []
    print(f"{'case':26} {'estimated':>10} {'real':>10} {'ratio':>6} {'reserved':>10}   GiB")
    for name in CASES:
        row: dict[str, Any] = {"case": name, "estimate": estimated(name, given.layers)}
        guess = row["estimate"]["allocated"] / 2**30
        if not given.only_estimate:
            command = [sys.executable, __file__, "--case", name, "--layers", str(given.layers)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                row["error"] = done.stderr[-2000:]
                print(f"{name:26} {guess:10.2f}  failed: {done.stderr.strip().splitlines()[-1:]}")
            else:
                row["real"] = json.loads(done.stdout.strip().splitlines()[-1])
                real, reserved = (row["real"][key] / 2**30 for key in ("allocated", "reserved"))
                row["ratio"] = guess / real
                print(f"{name:26} {guess:10.2f} {real:10.2f} {guess / real:6.3f} {reserved:10.2f}", flush=True)
        else:
            shown = {kind: round(size / 2**30, 3) for kind, size in row["estimate"]["parts"].items()}
            print(f"{name:26} {guess:10.2f}   {shown}", flush=True)
        rows.append(row)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
