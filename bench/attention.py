"""Kernels of attention on one GPU: which of torch's is fastest for which shape, and which torch takes by itself.

    python bench/attention.py                    forward and backward in bf16, medians of 20, interleaved

"default" is ``scaled_dot_product_attention`` as it is; the others have it choose one kernel alone. The last column is
how many times as long the default takes as the fastest. "same bits" is whether the same inputs give the same gradients
twice.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

KERNELS = {
    "default": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}

#: Batch, heads, heads of keys and values, length, numbers a head; what is masked.
SHAPES: list[tuple[int, int, int, int, int, str]] = [
    (8, 4, 4, 128, 32, "causal"),
    (32, 12, 12, 128, 64, "causal"),
    (32, 12, 12, 128, 64, "none"),
    (32, 12, 12, 512, 64, "none"),
    (32, 12, 12, 512, 64, "padding"),
    (64, 12, 12, 197, 64, "none"),
    (32, 12, 12, 1024, 64, "causal"),
    (8, 32, 32, 2048, 64, "causal"),
    (8, 16, 16, 2048, 128, "causal"),
    (4, 32, 8, 4096, 128, "causal"),
    (2, 32, 8, 8192, 128, "causal"),
    (4, 16, 16, 2048, 96, "causal"),
    (4, 8, 8, 2048, 256, "causal"),
]
ROUNDS = 20


def attention(shape: tuple[int, int, int, int, int, str], kernel: SDPBackend | None) -> Callable[[], list[Tensor]]:
    batch, heads, groups, length, size, masked = shape
    generator = torch.Generator("cuda").manual_seed(0)

    def numbers(count: int) -> Tensor:
        made = torch.randn(batch, length, count, size, device="cuda", dtype=torch.bfloat16, generator=generator)
        return made.transpose(1, 2).requires_grad_()

    query, key, value = numbers(heads), numbers(groups), numbers(groups)
    options: dict[str, Any] = {"is_causal": masked == "causal", "enable_gqa": heads != groups}
    if masked == "padding":
        lengths = torch.linspace(length // 4, length, batch, device="cuda").long()
        options["attn_mask"] = (torch.arange(length, device="cuda") < lengths[:, None])[:, None, None, :]
    gradient = torch.randn_like(query)

    def compute() -> list[Tensor]:
        found = scaled_dot_product_attention(query, key, value, **options)
        return list(torch.autograd.grad(found, [query, key, value], gradient))

    def chosen() -> list[Tensor]:
        if kernel is None:
            return compute()
        with sdpa_kernel(kernel):
            return compute()

    return chosen


def milliseconds(compute: Callable[[], Any]) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(5):
        compute()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 5


def taken(compute: Callable[[], Any]) -> str:
    """The kernel whose backward is seen."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        compute()
    names = {event.key for event in profile.key_averages()}
    for word, name in (("cudnn", "cuDNN"), ("flash", "flash"), ("efficient", "efficient")):
        if any(f"_scaled_dot_product_{word}_attention_backward" in one for one in names):
            return name
    return "math"


def main() -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    for shape in SHAPES:
        ways = {}
        for name, kernel in KERNELS.items():
            compute = attention(shape, kernel)
            try:
                first, second = compute(), compute()
            except RuntimeError:
                continue
            ways[name] = (compute, all(torch.equal(one, other) for one, other in zip(first, second, strict=True)))
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, (compute, _) in ways.items():
                times[name].append(milliseconds(compute))
        middle = {name: statistics.median(found) for name, found in times.items()}
        cells = [f"{name} {middle[name]:.3f} ms{'' if ways[name][1] else ' (other bits)'}" for name in middle]
        best = min(middle[name] for name in middle if name != "default")
        batch, heads, groups, length, size, masked = shape
        print(
            f"{batch}x{heads}({groups})x{length}x{size} {masked}: {', '.join(cells)}; default takes "
            f"{taken(ways['default'][0])}, {middle['default'] / best:.2f} of the fastest",
            flush=True,
        )


if __name__ == "__main__":
    main()
