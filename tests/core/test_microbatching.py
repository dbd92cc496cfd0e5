"""How finely batches are cut, and when larger pieces are tried again."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from trainwright.core.microbatching import LONGEST_PATIENCE, MicroBatching, finer
from trainwright.engines.torch.split_batch import cut_batch


@given(rows=st.integers(1, 500))
def test_every_batch_can_be_cut_down_to_single_samples_in_few_tries(rows: int) -> None:
    parts, tries = 1, 0
    while (next_parts := finer(rows, parts)) is not None:
        assert parts < next_parts <= min(2 * parts, rows)
        parts, tries = next_parts, tries + 1
    assert parts == rows
    assert tries <= 3 * rows.bit_length()


@given(rows=st.integers(1, 64), parts=st.integers(1, 80))
def test_pieces_put_together_are_the_batch(rows: int, parts: int) -> None:
    batch = {"x": torch.arange(rows * 3).reshape(rows, 3), "names": [str(i) for i in range(rows)], "temperature": 0.5}
    pieces = cut_batch(batch, parts)
    assert len(pieces) == min(rows, parts)
    assert torch.equal(torch.cat([piece["x"] for piece in pieces]), batch["x"])
    assert [name for piece in pieces for name in piece["names"]] == batch["names"]
    sizes = [len(piece["x"]) for piece in pieces]
    assert max(sizes) - min(sizes) <= 1


def test_a_rare_long_batch_does_not_shrink_all_later_ones() -> None:
    micro = MicroBatching(automatic=True, patience=3)
    assert micro.refine(8)
    assert micro.refine(8)
    assert micro.parts_for(8) == 4
    for _ in range(3):
        micro.fitted()
    assert micro.parts_for(8) == 2
    for _ in range(3):
        micro.fitted()
    assert micro.parts_for(8) == 1


def test_a_size_that_never_fits_is_tried_ever_more_rarely() -> None:
    micro = MicroBatching(automatic=True)
    micro.refine(8)
    waits = []
    for _ in range(10):
        steps = 0
        while micro.parts == 2:
            micro.fitted()
            steps += 1
        waits.append(steps)
        assert micro.refine(8)
    assert waits[:4] == [50, 100, 200, 400]
    assert waits[-1] == LONGEST_PATIENCE


def test_the_cut_survives_in_a_checkpoint() -> None:
    micro = MicroBatching(automatic=True)
    micro.refine(12)
    micro.fitted()
    other = MicroBatching(automatic=True)
    other.load_state_dict(micro.state_dict())
    assert other == micro
