"""Cross-entropy of rows of logits on a GPU: losses, and the gradients in the logits' own place, in one kernel.

Each row is read from memory once, a second time from the cache, and written once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Words that a program has in its registers at a time, and threads / 32 that share them.
BLOCK = 4096
WARPS = 8


def losses_and_gradients(logits: Tensor, target: Tensor) -> Tensor:
    """Loss of each row; ``logits`` hold its gradients afterwards. A target that is no word has the loss NaN."""
    losses = torch.empty(len(target), dtype=torch.float32, device=logits.device)
    kernel: Any = _kernel
    kernel[(len(target),)](logits, logits.stride(0), target, losses, logits.shape[1], BLOCK, num_warps=WARPS)
    return losses


@triton.jit
def _kernel(logits, stride, targets, losses, words, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    # Not minus infinity: a block of nothing but minus infinity must not become NaN.
    largest = -3.0e38
    total = 0.0
    for start in range(0, words, BLOCK):
        word = start + tl.arange(0, BLOCK)
        x = tl.load(logits + word, mask=word < words, other=float("-inf")).to(tl.float32)
        new = tl.maximum(largest, tl.max(x, 0))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(x - new), 0)
        largest = new
    is_word = (target >= 0) & (target < words)
    chosen = tl.load(logits + target, mask=is_word, other=float("nan")).to(tl.float32)
    tl.store(losses + row, tl.log(total) + largest - chosen)
    # All threads have read before one writes.
    tl.debug_barrier()
    for start in range(0, words, BLOCK):
        word = start + tl.arange(0, BLOCK)
        x = tl.load(logits + word, mask=word < words, other=float("-inf")).to(tl.float32)
        share = tl.exp(x - largest) / total
        gradient = tl.where(word == target, share - 1.0, share)
        tl.store(logits + word, gradient.to(logits.dtype.element_ty), mask=word < words)
