"""From scores to masks: exact counts, nested masks, whole blocks and groups, ties that fall the same way every time."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from trainwright.recipes.pruning.masks import mask_of, masks_of
from trainwright.recipes.pruning.patterns import Pattern, pattern_of
from trainwright.recipes.pruning.sparsity import checked_interpolation, checked_share, interpolate, progress_between

shapes = st.lists(st.integers(1, 6), min_size=1, max_size=5).map(tuple)
shares = st.floats(0, 1)


def scores_for(shape: tuple[int, ...], seed: int, distinct: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if distinct:
        return torch.randint(0, distinct, shape, generator=generator).float()
    return torch.rand(shape, generator=generator)


@given(shapes, shares, st.integers(0, 5), st.integers(0, 3))
def test_the_number_of_zeros_is_exact(shape: tuple[int, ...], share: float, seed: int, distinct: int) -> None:
    mask = mask_of(scores_for(shape, seed, distinct), share, name="weight")
    assert mask.dtype == torch.bool
    assert mask.shape == shape
    assert int((~mask).sum()) == round(share * mask.numel())


@given(shapes, st.lists(shares, min_size=2, max_size=4), st.integers(0, 5), st.integers(0, 3))
def test_a_sparser_mask_keeps_nothing_that_a_denser_one_drops(
    shape: tuple[int, ...], levels: list[float], seed: int, distinct: int
) -> None:
    scores = scores_for(shape, seed, distinct)
    masks = [mask_of(scores, share, name="weight") for share in sorted(levels)]
    for denser, sparser in pairwise(masks):
        assert not (sparser & ~denser).any()


@given(shapes, shares, st.integers(0, 5))
def test_what_goes_has_the_lowest_scores(shape: tuple[int, ...], share: float, seed: int) -> None:
    scores = scores_for(shape, seed)
    mask = mask_of(scores, share, name="weight")
    if mask.any() and (~mask).any():
        assert scores[~mask].max() <= scores[mask].min()


@given(st.sampled_from([(4, 8), (6, 4, 3), (2, 12, 2, 2), (4, 4, 2, 1, 3)]), shares, st.integers(0, 3))
def test_blocks_are_whole(shape: tuple[int, ...], share: float, distinct: int) -> None:
    mask = mask_of(scores_for(shape, 1, distinct), share, pattern_of([2, 4]), name="weight")
    blocks = mask.reshape(shape[0] // 2, 2, shape[1] // 4, 4, -1)
    assert (blocks.all(3).all(1) == blocks.any(3).any(1)).all()
    assert int((~mask).sum()) == 8 * round(share * mask.numel() / 8)


@given(st.integers(1, 5), st.integers(1, 11), st.integers(1, 3), shares)
def test_block4_pads_the_last_block_of_a_row(rows: int, columns: int, positions: int, share: float) -> None:
    mask = mask_of(scores_for((rows, columns, positions), 2), share, pattern_of("block4"), name="weight")
    for start in range(0, columns, 4):
        block = mask[:, start : start + 4]
        assert (block.all(1) == block.any(1)).all()
    assert abs(int((~mask).sum()) - share * mask.numel()) <= 2


@given(st.sampled_from([(4, 8), (8, 8, 3, 3), (3, 4, 5), (2, 4, 2, 1, 2)]), shares, st.integers(0, 3))
def test_n_of_m_may_be_gradual(shape: tuple[int, ...], share: float, distinct: int) -> None:
    """Also on convolutions, along their inputs, and in the weight's own shape."""
    share = share / 2
    scores, pattern = scores_for(shape, 3, distinct), pattern_of("2:4")
    mask = mask_of(scores, share, pattern, name="weight")
    assert mask.shape == shape
    assert int((~mask).sum()) == round(share * mask.numel())
    final = mask_of(scores, 0.5, pattern, name="weight", kept=mask)
    assert not (final & ~mask).any()
    groups = final.movedim(1, -1).reshape(-1, 4)
    assert (groups.sum(1) == 2).all()


@given(st.floats(0, 1), st.integers(0, 9))
def test_n_of_m_from_a_sparse_model_is_n_of_m(share: float, seed: int) -> None:
    """Also where a group has more zeros already than the pattern allows."""
    zeros = mask_of(scores_for((4, 8, 2), seed), share, name="before")
    final = mask_of(scores_for((4, 8, 2), seed + 1), 0.5, pattern_of("2:4"), name="weight", kept=zeros)
    groups, before = (mask.movedim(1, -1).reshape(-1, 4) for mask in (final, zeros))
    assert (groups.sum(1) == 2).all()
    assert ((~groups & ~before).sum(1) == (~before).sum(1).clamp(max=2)).all()


@pytest.mark.parametrize("kind", ["unstructured", "block4", "2:4", [2, 2], [-1, 1], "filter", "channel"])
def test_what_is_masked_stays_masked(kind: str | list[int]) -> None:
    pattern = pattern_of(kind)
    kept = mask_of(scores_for((8, 8, 2), 1), 0.25, pattern, name="weight")
    later = mask_of(scores_for((8, 8, 2), 2), 0.5, pattern, name="weight", kept=kept)
    assert not (later & ~kept).any()
    assert int((~later).sum()) == 64
    assert torch.equal(mask_of(scores_for((8, 8, 2), 3), 0.1, pattern, name="weight", kept=kept), kept)


def test_ties_fall_the_same_way_for_the_same_name() -> None:
    equal = torch.ones(100)
    one, same, other = (mask_of(equal, 0.5, name=name) for name in ("a", "a", "b"))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert int(one[:50].sum()) not in (0, 50)


@given(st.lists(shapes, min_size=1, max_size=4), shares)
def test_one_threshold_for_all(many: list[tuple[int, ...]], share: float) -> None:
    scores = {str(number): scores_for(shape, number) for number, shape in enumerate(many)}
    masks = masks_of(scores, dict.fromkeys(scores, share), Pattern(), together=True)
    total = sum(score.numel() for score in scores.values())
    assert sum(int((~mask).sum()) for mask in masks.values()) == round(share * total)
    dropped = [float(scores[name][~mask].max()) for name, mask in masks.items() if (~mask).any()]
    kept = [float(scores[name][mask].min()) for name, mask in masks.items() if mask.any()]
    assert not dropped or not kept or max(dropped) <= min(kept)


def test_scores_that_are_not_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"hidden\.weight holds values that are not numbers"):
        mask_of(torch.tensor([1.0, float("nan")]), 0.5, name="hidden.weight")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_number_formats(dtype: torch.dtype) -> None:
    assert int((~mask_of(torch.rand(1000).to(dtype), 0.9, name="weight")).sum()) == 900


@pytest.mark.parametrize(
    ("kind", "words"),
    [("four", "is not known"), ("4:2", "N must be from 1 to M - 1"), ([1, 2, 3], "a block is"), ([0, 4], "a block is")],
)
def test_unknown_patterns(kind: str | list[int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        pattern_of(kind)


@pytest.mark.parametrize(
    ("kind", "shape", "words"),
    [
        ([3, 4], (8, 8), "3 does not divide 8"),
        ([1, 4], (8,), "one dimension"),
        ("2:4", (8, 3, 3, 3), "multiple of 4"),
        ("2:4", (8,), "multiple of 4"),
        ("channel", (8,), "no dimension 1"),
    ],
)
def test_weights_that_do_not_fit(kind: str | list[int], shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        pattern_of(kind).check("some.weight", shape)


def test_cubic_schedule() -> None:
    reached = [interpolate(progress, 0.05, 0.8) for progress in (0, 0.25, 0.5, 0.75, 1)]
    assert reached == pytest.approx([0.05, 0.48359375, 0.70625, 0.78828125, 0.8], abs=1e-9)


@given(shares, shares, shares, st.sampled_from(["linear", "cubic", "inverse_cubic"]))
def test_schedules_stay_between_their_ends(progress: float, initial: float, final: float, how: str) -> None:
    low, high = sorted((initial, final))
    assert low - 1e-9 <= interpolate(progress, initial, final, how) <= high + 1e-9
    assert interpolate(-1, initial, final, how) == initial
    assert interpolate(2, initial, final, how) == final


def test_schedule_words() -> None:
    assert interpolate(0.5, 0, 1, "linear") == 0.5
    assert interpolate(0.875, 0, 1, "inverse_cubic") == pytest.approx(0.5)
    assert progress_between(3, -1, 6) == 0.5
    assert progress_between(3, 3, 3) == 1
    with pytest.raises(ValueError, match="use one of linear, cubic"):
        checked_interpolation("quartic")
    for bad in (1.5, -0.1, "much", None):
        with pytest.raises(ValueError, match="final_sparsity"):
            checked_share(bad, "final_sparsity")
