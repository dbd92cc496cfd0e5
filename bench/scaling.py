"""A model of the cost of a step on many GPUs, measured where that is possible here, predicted elsewhere.

    python bench/scaling.py            # measures 1 and 2 processes with gloo on this machine, then prints predictions
    python bench/scaling.py --predict  # predictions alone

The model, for n processes that each compute the same number of tokens:

    compute   seconds per token x tokens; a third of it forward, two thirds backward
    DDP       2 (n-1)/n x gradient bytes / bandwidth, behind the backward pass but for the last bucket
    FSDP      2 x (n-1)/n x bytes of half-precision weights (gathered for forward and for backward)
              + (n-1)/n x bytes of float32 gradients, / bandwidth, behind all passes but for the first block
    latency   a fixed time for each exchange, times log2(n)
    saving    bytes / storage bandwidth, in the background; the stall is a copy into main memory
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

GB = 1e9


@dataclass(frozen=True)
class Cluster:
    """GPUs and what connects them; one direction, bytes a second."""

    per_node: int = 8
    nvlink: float = 450 * GB
    network_per_gpu: float = 50 * GB
    #: Share of a link's nominal speed that exchanges reach.
    reached: float = 0.8
    latency: float = 20e-6
    node_storage: float = 5 * GB
    shared_storage: float = 100 * GB
    #: Seconds that training stands still for each byte that a process saves.
    stall: float = 0.016 / 1.2e9

    def bandwidth(self, gpus: int) -> float:
        """Of a ring over all GPUs: between nodes every GPU has a network card of its own, so a node has all of them."""
        between = self.network_per_gpu * self.per_node
        return self.reached * (self.nvlink if gpus <= self.per_node else min(self.nvlink, between))


@dataclass(frozen=True)
class Work:
    """What one GPU does in a step."""

    parameters: float
    layers: int
    tokens: int
    flops: float

    @property
    def compute(self) -> float:
        return 6 * self.parameters * self.tokens / self.flops


@dataclass(frozen=True)
class Step:
    compute: float
    exchange: float
    exposed: float
    save: float
    stall: float

    @property
    def seconds(self) -> float:
        return self.compute + self.exposed


def predict(work: Work, gpus: int, way: str, cluster: Cluster) -> Step:
    """One step, and one checkpoint, of ``gpus`` that train together."""
    share, bandwidth = (gpus - 1) / gpus, cluster.bandwidth(gpus)
    calls = 2 * math.ceil(4 * work.parameters / 25e6) if way == "ddp" else 3 * work.layers
    waits = cluster.latency * math.log2(max(gpus, 1))
    saved = 12 * work.parameters
    if way == "ddp":
        exchange = 2 * share * 4 * work.parameters / bandwidth + calls * waits / 2
        # The last bucket is exchanged when nothing is left to compute.
        last = exchange * min(1.0, 25e6 / (4 * work.parameters))
        exposed = max(last, exchange - work.compute * 2 / 3)
        save, stall = saved / cluster.node_storage, saved * cluster.stall
    else:
        exchange = share * (2 * 2 + 4) * work.parameters / bandwidth + calls * waits
        exposed = max(exchange / (3 * work.layers), exchange - work.compute)
        nodes = max(1, gpus // cluster.per_node)
        save = saved / min(nodes * cluster.node_storage, cluster.shared_storage)
        stall = saved / gpus * cluster.stall
    return Step(work.compute, exchange, exposed if gpus > 1 else 0.0, save, stall)


# ---- measured here


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(768, 768), nn.GELU())]
    return nn.Sequential(*layers)


def measure_here(rounds: int) -> dict[str, float]:
    """Medians of one process among those that torchrun started: passes alone, the exchange alone, both together."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = DistributedDataParallel(network(), gradient_as_bucket_view=True)
    rows = torch.randn(512, 768)
    flat = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))

    def passes(*, exchange: bool) -> None:
        with nullcontext() if exchange else model.no_sync():
            model(rows).square().mean().backward()

    kinds = {
        "passes": lambda: passes(exchange=False),
        "exchange": lambda: dist.all_reduce(flat),
        "step": lambda: passes(exchange=True),
    }
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, act in kinds.items():
            model.zero_grad()
            dist.barrier()
            begun = time.perf_counter()
            act()
            longest = torch.tensor(time.perf_counter() - begun)
            # A step ends when the last process has ended it.
            dist.all_reduce(longest, op=dist.ReduceOp.MAX)
            times[name].append(float(longest))
    found = {name: statistics.median(values[3:]) for name, values in times.items()}
    found["bytes"] = 4.0 * flat.numel()
    return found


def measured(rounds: int) -> dict[int, dict[str, float]]:
    found = {}
    for processes in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "found.json"
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
            command += [__file__, "--worker", str(target), "--rounds", str(rounds)]
            subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True)
            found[processes] = json.loads(target.read_text())
    return found


def report_measured(rounds: int) -> None:
    found = measured(rounds)
    print("processes  passes ms  exchange ms  step ms  predicted ms  error")
    for processes, times in found.items():
        # On a CPU the exchange takes the cores that the passes would use: nothing is hidden behind anything.
        predicted = times["passes"] + (times["exchange"] if processes > 1 else 0.0)
        error = predicted / times["step"] - 1
        numbers = [1e3 * value for value in (times["passes"], times["exchange"], times["step"], predicted)]
        print(f"{processes:9}  " + "  ".join(f"{number:9.2f}" for number in numbers) + f"  {error:+.1%}")
    speed = found[2]["bytes"] / found[2]["exchange"] / GB
    print(f"gloo: {found[2]['bytes'] / 1e6:.1f} MB of gradients, {speed:.2f} GB/s")


def report_predicted(flops: float, tokens: int) -> None:
    cluster = Cluster()
    works = {"1B": Work(1.1e9, 16, tokens, flops), "7B": Work(6.7e9, 32, tokens, flops)}
    print(f"\n{flops / 1e12:.0f} TFLOP/s per GPU, {tokens:,} tokens per GPU and step")
    print("model  way   GPUs  step s  exchange s  exposed s  efficiency     tokens/s  save s  stall s")
    for name, work in works.items():
        for way in ("ddp", "fsdp"):
            for gpus in (1, 8, 64, 512):
                step = predict(work, gpus, way, cluster)
                rate = gpus * work.tokens / step.seconds
                print(
                    f"{name:5}  {way:4}  {gpus:4}  {step.seconds:6.3f}  {step.exchange:10.4f}  {step.exposed:9.4f}"
                    f"  {work.compute / step.seconds:10.1%}  {rate:11,.0f}  {step.save:6.1f}  {step.stall:7.3f}"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--worker", type=Path)
    given = parser.parse_args()
    if given.worker is not None:
        found = measure_here(given.rounds)
        if dist.get_rank() == 0:
            given.worker.write_text(json.dumps(found))
        dist.barrier()
        os._exit(0)
    if not given.predict:
        report_measured(given.rounds)
    # Measured with 124M parameters on one H200 (RESULTS.md), and what larger models are said to reach.
    for flops, tokens in ((191e12, 16_384), (400e12, 16_384), (400e12, 2_048)):
        report_predicted(flops, tokens)


if __name__ == "__main__":
    main()
