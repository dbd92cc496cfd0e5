"""Batch sizes: equal parts, nothing lost, three names for one batch."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.config.batch_sizes import BatchSizes, largest_fitting_divisor, share_of_global_batch
from trainwright.config.warnings import TrainwrightWarning


@pytest.mark.parametrize(
    ("global_batch", "limit", "world", "per_device", "accumulation"),
    [
        (6, 1000, 1, 6, 1),
        (6, 3, 1, 3, 2),
        (4, 1, 2, 1, 2),
        (100, 30, 1, 25, 4),
        (128, 48, 1, 32, 4),
        (96, 40, 1, 32, 3),
        (90, 40, 1, 30, 3),
    ],
)
def test_the_largest_equal_parts(global_batch: int, limit: int, world: int, per_device: int, accumulation: int) -> None:
    assert BatchSizes.of_global(global_batch, world, limit) == BatchSizes(per_device, accumulation, world)


@pytest.mark.parametrize(("share", "limit", "better"), [(97, 40, "96"), (7, 3, "6")])
def test_a_batch_that_cuts_badly_is_said(share: int, limit: int, better: str) -> None:
    with pytest.warns(TrainwrightWarning, match=f"A batch of {better} per process"):
        assert largest_fitting_divisor(share, limit) == 1


@pytest.mark.parametrize(("batch", "world", "words"), [(10, 4, "use 8 or 12"), (3, 4, "use 4"), (0, 1, "at least 1")])
def test_a_batch_that_does_not_divide_is_refused(batch: int, world: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        share_of_global_batch(batch, world)


@given(st.integers(1, 400), st.integers(1, 100), st.integers(1, 8))
def test_no_sample_is_lost_and_no_larger_part_would_do(share: int, limit: int, world: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainwrightWarning)
        sizes = BatchSizes.of_global(share * world, world, limit)
    assert sizes.global_batch == share * world
    assert sizes.per_device <= limit
    assert not any(share % size == 0 for size in range(sizes.per_device + 1, min(limit, share) + 1))


def test_three_names_for_one_batch(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = BatchSizes.of_global(96, world_size=2, limit=16)
    print(
        f"Hugging Face, per device: {sizes.per_device}; ACCMT, per process: {sizes.per_process}; PyMarlin, global: "
        f"{sizes.global_batch}"
    )
    assert "per device: 16; ACCMT, per process: 48; PyMarlin, global: 96" in capsys.readouterr().out
    assert sizes.accumulation == 3
