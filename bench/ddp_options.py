"""What DistributedDataParallel's options cost: one process, its own NCCL group, interleaved, medians of step times."""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def model_of(device: torch.device) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    width, layers = (64, 4) if device.type == "cpu" else (768, 12)
    size: dict[str, Any] = {"hidden_size": width, "intermediate_size": 2 * width, "num_attention_heads": width // 64}
    size["num_hidden_layers"] = layers
    model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=32000, **size))
    return model.to(device)


def main(steps: int) -> None:
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    kind = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(kind, store=dist.HashStore(), rank=0, world_size=1)
    ways: dict[str, dict[str, Any]] = {
        "plain": {"find_unused_parameters": False},
        "static graph": {"static_graph": True},
        "looks for unused": {"find_unused_parameters": True},
    }
    ids = torch.randint(0, 32000, (8, 512 if device.type == "cuda" else 32), device=device)
    runs = {}
    for name, options in ways.items():
        wrapped = DistributedDataParallel(model_of(device), gradient_as_bucket_view=True, **options)
        runs[name] = (wrapped, torch.optim.AdamW(wrapped.parameters(), fused=True), [])
    for _ in range(steps):
        for wrapped, optimizer, times in runs.values():
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            with torch.autocast(device.type, dtype=torch.bfloat16):
                wrapped(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
    base = statistics.median(runs["plain"][2][5:])
    for name, (_, _, times) in runs.items():
        middle = statistics.median(times[5:])
        print(f"{name:<20}{1000 * middle:8.2f} ms{middle / base:8.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
