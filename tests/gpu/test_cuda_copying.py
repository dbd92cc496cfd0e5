"""Batches on their way to the GPU."""

from __future__ import annotations

import pytest
import torch

from trainwright.engines.torch.copying import Copying

pytestmark = pytest.mark.gpu


def test_a_large_batch_is_copied_while_the_gpu_computes() -> None:
    copying = Copying(torch.device("cuda", torch.cuda.current_device()))
    batch = {"pixels": torch.ones(2**20).pin_memory()}
    copying(batch)
    torch.cuda.synchronize()
    # Half a second of work.
    torch.cuda._sleep(1_000_000_000)
    still = torch.cuda.Event()
    still.record()
    moved = copying(batch)
    assert copying._stream is not None
    copying._stream.synchronize()
    assert not still.query()
    assert float(moved["pixels"].sum()) == 2**20


def test_memory_of_a_batch_is_not_used_again_before_it_is_read() -> None:
    copying = Copying(torch.device("cuda", torch.cuda.current_device()))
    sums = []
    for number in range(50):
        moved = copying({"x": torch.full((2**18,), float(number)).pin_memory(), "names": ["a"]})
        torch.cuda._sleep(10_000_000)
        sums.append(moved["x"].sum())
        del moved
    assert [float(one) for one in sums] == [float(number) * 2**18 for number in range(50)]


def test_what_is_small_or_not_pinned_goes_the_plain_way() -> None:
    copying = Copying(torch.device("cuda", torch.cuda.current_device()))
    assert copying((torch.ones(4).pin_memory(), "text"))[0].is_cuda
    assert copying([torch.ones(2**20)])[0].is_cuda
    assert copying._stream is None
